-- families: make a new task a child. A section has the fields of ChildSection in section.py.
-- requires: children, cleanup, keys, limits, states, status, task_waits, tasks, time
--
-- The record of a child has `parent`, the id of its parent, and `depth`, the number of its ancestors. The record of a
-- parent has `children`: the tags of its children in the order of their creation, each followed by a space. The tag of a
-- child that is not cancelled with its parent is followed by an exclamation mark. The record of a child has `called` if a
-- resubmitted parent uses it again.

local parent -- of the new task, as find_parent returns it

-- Return the live children in `children`, in the same form, and their number.
local function live_children(keys, children)
  local live, prefix = {}, prefix_of(keys)
  for child in string.gmatch(children, '%S+') do
    local state = redis.call('HGET', keys_of(prefix, string.match(child, '^[^!]+')).record, 'state')
    if state and not TERMINAL[tonumber(state)] then live[#live + 1] = child .. ' ' end
  end
  return table.concat(live), #live
end

-- Return nil if no task with the id of the parent has the same tenant and owner, so that a client cannot make another
-- owner's task a parent. Otherwise, return a table with the fields `keys`, `tag`, `state`, `turn`, `depth` (of the new
-- task) and `children` (without the new task).
local function find_parent(families, keys, scope)
  local found = {tag = quoted(families.id)}
  found.keys = keys_of(prefix_of(keys), found.tag)
  local stored = redis.call('HMGET', found.keys.record, 'scope', 'state', 'turn', 'depth', 'children')
  if not stored[1] or string.match(stored[1], '/.*') ~= string.match(scope, '/.*') then return nil end
  found.state, found.turn, found.depth = tonumber(stored[2]), stored[3] or DEFAULTS.turn, tonumber(stored[4] or '0') + 1
  found.children = stored[5] or ''
  return found
end

-- Return the tags of the tasks that wait for the new task: its parent, and the ancestors that wait for its parent.
local function waiting_tags(keys)
  local tags, tag = {}, parent.tag
  repeat
    tags[tag] = true
    local stored = redis.call('HMGET', keys_of(prefix_of(keys), tag).record, 'resumes', 'parent')
    tag = stored[1] and stored[2] and quoted(stored[2])
  until not tag
  return tags
end

local MAX_SEARCHED = 1000

-- Return true if the run of the new task would be blocked in `context_queue` by a task that waits for the new task. The
-- first task of the queue keeps its place while it waits for the tasks that it has called, and a called task with a
-- queued run waits for the first task of its own queue. At most MAX_SEARCHED tasks are searched.
local function waits_for_itself(keys, context_queue)
  local prefix, waiting, found, is_found = prefix_of(keys), waiting_tags(keys), {}, {}
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
      if redis.call('HEXISTS', keys_of(prefix, child).record, 'resumes') == 1 then add(child) end
    end
  end
  return false
end

local function describe(families, keys, r)
  if not r.version then parent = find_parent(families, keys, r.scope) end
  return (parent or r.parent) and families.task or ''
end

-- Return the reply if the task cannot become a child, or nil.
local function admit(families, keys, r)
  if not parent then return nil end
  if parent.depth > families.max_depth then return {'deep'} end
  local _, count = string.gsub(parent.children, ' ', '')
  if count >= families.max_children then parent.children, count = live_children(keys, parent.children) end
  if count >= families.max_children then return {'limited', 'children', micros(families.max_children), micros(LONG_WAIT)} end
  if families.is_waiting and r.context_queue and waits_for_itself(keys, r.context_queue) then return {'waits_for_itself'} end
end

-- Record the new task as a child. If the parent has ended without a result, a watcher cancels the child. The called
-- children of a task that can be resubmitted continue, because the new task waits for them.
local function accepted(families, keys, task_id)
  if not parent then return end
  redis.call('HSET', keys.record, 'parent', families.id, 'depth', parent.depth)
  local children = parent.children .. task_tag(keys) .. (families.cancels and '' or '!') .. ' '
  save_children(parent.keys, children)
  merge_metadata(keys, families.metadata)
  if families.is_waiting then await_task(keys, families.id, parent.turn, 'child/' .. task_id) end
  if families.is_called then redis.call('HSET', keys.record, 'called', '1') end
  local is_kept = families.is_called and redis.call('HEXISTS', parent.keys.record, 'request') == 1
  if families.cancels and ends_without_result(parent.state) and not is_kept then cancel_children(parent.keys) end
end
