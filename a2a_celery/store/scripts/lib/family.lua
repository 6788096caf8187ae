-- requires: keys, states, time

-- The record of a child task has `parent`, the id of its parent, and `depth`, the number of its ancestors. The record
-- of a parent has `children`: the tags of its child tasks in the order of their creation, each followed by a space. The
-- tag of a child that is not cancelled with its parent is followed by an exclamation mark. The record of a child has
-- `awaited` as long as its parent waits for it, and `called` if a resubmitted parent uses it again. If a message
-- interrupts a turn, the record of the parent has `children_at_interrupt`, a copy of `children`, until the awaited tasks
-- among them have ended.

local function prefix_of(keys) return string.match(keys.record, '^(.*):{') end

-- Return the key of the list of tasks whose children a watcher cancels, because the task or a turn of it has ended.
local function ended_parents_key(keys) return prefix_of(keys) .. ':ended_parents' end

-- Return true if a task in `state` has ended without a result, so that its children are cancelled. The called children
-- of a task that can be resubmitted continue, because the new task waits for them.
local function cancels_children(state) return TERMINAL[state] and state ~= COMPLETED end

-- Make a watcher cancel the children of a task that has ended, or of which a turn has ended.
local function schedule_child_cancels(keys, tag)
  local list = ended_parents_key(keys)
  redis.call('ZADD', list, micros(now()), tag)
  redis.call('PUBLISH', list .. ':notifications', '')
end

-- Make a watcher cancel the children for which a task waits, because a message interrupts the turn that reads their
-- results. Children of later turns are not cancelled.
local function cancel_awaited_children(keys)
  local children = redis.call('HGET', keys.record, 'children')
  if not children then return end
  redis.call('HSET', keys.record, 'children_at_interrupt', children)
  schedule_child_cancels(keys, task_tag(keys))
end

-- Return the live children in `children`, in the same form, and their number.
local function live_children(keys, children)
  local live, prefix = {}, prefix_of(keys)
  for child in string.gmatch(children, '%S+') do
    local state = redis.call('HGET', keys_of(prefix, string.match(child, '^[^!]+')).record, 'state')
    if state and not TERMINAL[tonumber(state)] then live[#live + 1] = child .. ' ' end
  end
  return table.concat(live), #live
end

-- Read the parent of a new task. `arguments` is a table with the fields of ParentArguments in store/tasks/family.py, or
-- nil. Return nil if no such task has the same tenant and owner, so that a client cannot make another owner's task a parent.
-- Otherwise, return a table with the fields `keys`, `tag`, `state`, `depth` (of the new task), `children` (with the new
-- task), `is_waiting` (true if the parent waits for the task), `cancels_child` (true if the new task must be cancelled,
-- because the parent has ended) and `exceeded` ('depth' or 'children' if the task cannot become a child).
local function find_parent(keys, arguments, scope)
  if not arguments then return nil end
  local parent = {tag = quoted(arguments.id), is_waiting = arguments.is_waiting, is_called = arguments.is_called}
  parent.keys = keys_of(prefix_of(keys), parent.tag)
  local stored = redis.call('HMGET', parent.keys.record, 'scope', 'state', 'depth', 'children')
  if not stored[1] or string.match(stored[1], '/.*') ~= string.match(scope, '/.*') then return nil end
  parent.state, parent.depth = tonumber(stored[2]), tonumber(stored[3] or '0') + 1
  if parent.depth > arguments.max_depth then parent.exceeded = 'depth' end
  local children = stored[4] or ''
  local _, count = string.gsub(children, ' ', '')
  if count >= arguments.max_children then children, count = live_children(keys, children) end
  if count >= arguments.max_children then parent.exceeded = parent.exceeded or 'children' end
  parent.children = children .. task_tag(keys) .. (arguments.cancels and '' or '!') .. ' '
  local is_kept = parent.is_called and redis.call('HEXISTS', parent.keys.record, 'request') == 1
  parent.cancels_child = arguments.cancels and cancels_children(parent.state) and not is_kept
  return parent
end

-- Return the tags of the tasks that wait for a new task: its parent, and the ancestors that wait for its parent.
local function waiting_tags(keys, parent)
  local tags, tag = {}, parent.tag
  repeat
    tags[tag] = true
    local stored = redis.call('HMGET', keys_of(prefix_of(keys), tag).record, 'awaited', 'parent')
    tag = stored[1] and stored[2] and quoted(stored[2])
  until not tag
  return tags
end

local MAX_SEARCHED = 1000

-- Return true if the run of a new task would be blocked in `context_queue` (nil or false for none) by a task that waits
-- for the new task. The first task of the queue keeps its place while it waits for the tasks that it has called, and a
-- called task with a queued run waits for the first task of its own queue. At most MAX_SEARCHED tasks are searched.
local function waits_for_itself(keys, parent, context_queue)
  if not parent.is_waiting or not context_queue then return false end
  local prefix, waiting, found, is_found = prefix_of(keys), waiting_tags(keys, parent), {}, {}
  local function add(tag)
    if tag and not is_found[tag] then found[#found + 1], is_found[tag] = tag, true end
  end
  add(redis.call('LINDEX', context_queue, 0))
  for i = 1, MAX_SEARCHED do
    if not found[i] then return false end
    if waiting[found[i]] then return true end
    local stored = redis.call('HMGET', keys_of(prefix, found[i]).record, 'phase', 'context_queue', 'children')
    if stored[1] == 'queued' and stored[2] then add(redis.call('LINDEX', stored[2], 0)) end
    for child in string.gmatch(stored[3] or '', '[^ !]+') do
      if redis.call('HEXISTS', keys_of(prefix, child).record, 'awaited') == 1 then add(child) end
    end
  end
  return false
end

-- Record a new task as a child. If the parent has ended without a result, a watcher cancels the child.
local function join_family(keys, parent, id)
  redis.call('HSET', keys.record, 'parent', id, 'depth', parent.depth)
  redis.call('HSET', parent.keys.record, 'children', parent.children)
  if parent.is_waiting then redis.call('HSET', keys.record, 'awaited', '1') end
  if parent.is_called then redis.call('HSET', keys.record, 'called', '1') end
  if parent.cancels_child then schedule_child_cancels(keys, parent.tag) end
end
