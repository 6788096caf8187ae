-- list_tasks: return a page of the tasks of a scope, newest status first. Tasks with equal times are sorted by
-- descending id.
-- returns {number of tasks on all pages, '1' if another page follows, archive cutoff ('' for none), tasks …}. A task is
--         {task id, context id, state, time of the status in µs, snapshot}, without a snapshot if the task is unreadable.
-- requires: keys, packed, snapshot, states, time, transitions

local index_prefix = context_id == '' and scope_index_of(prefix, scope) or context_index_of(prefix, scope, context_id)
local cursor_at = cursor and tonumber(cursor.at_us)
local oldest = not_before_us or '-inf'
local wanted_state = state ~= 0 and state
local states = {}
for state in pairs(LEGAL) do
  if not wanted_state or wanted_state == state then states[#states + 1] = state end
end

-- Return true if an ended task has expired before its index, because the retention period was shorter before.
local function is_gone(state, tag)
  return TERMINAL[state] and redis.call('EXISTS', prefix .. ':{' .. tag .. '}:task') == 0
end

local function follows_cursor(at, tag) return not cursor_at or at < cursor_at or (at == cursor_at and tag < cursor.tag) end

local members, total = {}, 0
for _, state in ipairs(states) do
  local index = index_prefix .. state
  if TERMINAL[state] and not archived then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', micros(now() - retention * 1000000))
  end
  local offset, count, batch = 0, 0, nil
  repeat
    batch = redis.call('ZREVRANGEBYSCORE', index, cursor and cursor.at_us or '+inf', oldest,
      'WITHSCORES', 'LIMIT', offset, page_size + 1)
    for i = 1, #batch, 2 do
      local at = tonumber(batch[i + 1])
      if is_gone(state, batch[i]) then
        redis.call('ZREM', index, batch[i])
        offset = offset - 1
      elseif follows_cursor(at, batch[i]) then
        members[#members + 1] = {at, batch[i]}
        count = count + 1
      end
    end
    offset = offset + page_size + 1
  until count > page_size or #batch < 2 * (page_size + 1)
  total = total + redis.call('ZCOUNT', index, oldest, '+inf')
end
table.sort(members, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)

local border = archived and redis.call('HGET', installation, 'border') or ''
local page = {tostring(total), #members > page_size and '1' or '0', border}
local reads_contents, bytes = history_length ~= 0 or artifacts, 0

-- Return the snapshot of a task, or nil if the page has no space for the task.
local function read_listed(keys, r)
  if r.packed then r.status = unpack_status(keys) end
  local task_bytes = math.max(#r.status, reads_contents and r.size or 0)
  if bytes + task_bytes > (max_bytes or math.huge) and #page > 3 then return nil end
  bytes = bytes + task_bytes
  return snapshot(keys, r, history_length or -1, artifacts)
end

for i = 1, math.min(page_size, #members) do
  local keys = keys_of(prefix, members[i][2])
  local r = load_summary(keys)
  if r then
    local is_readable, contents = pcall(read_listed, keys, r)
    if is_readable and not contents then
      page[2] = '1'
      break
    end
    page[#page + 1] = {r.task_id, r.context, micros(r.state), micros(r.at), is_readable and contents or nil}
  end
end
return page
