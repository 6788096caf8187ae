-- list_tasks: return a page of the tasks of a scope, newest status first. Tasks with equal times are sorted by
-- descending id.
-- KEYS  prefix of the index of a scope, or of one of its contexts
-- ARGV  state ('0' for all), time of the oldest status in µs, size of the page, time of the cursor in µs ('' for the
--       first page), quoted id of the cursor, history length (-1 for all), '1' to read the artifacts, key prefix,
--       retention in seconds, installation ('' if ended tasks are not archived), bytes of tasks after which the page
--       ends ('' for no limit). A page has at least one task.
-- returns {number of tasks on all pages, '1' if another page follows, archive cutoff ('' for none), snapshots …}
-- requires: keys, packed, snapshot, states, time, transitions
local index_prefix = KEYS[1]
local wanted_state, oldest, size, cursor_us, cursor_id = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local history_length, with_artifacts, prefix = tonumber(ARGV[6]), ARGV[7] == '1', ARGV[8]
local retention, installation, max_bytes = tonumber(ARGV[9]), ARGV[10], tonumber(ARGV[11]) or math.huge

local cursor_at = tonumber(cursor_us)
local states = {}
for state in pairs(LEGAL) do
  if wanted_state == 0 or wanted_state == state then states[#states + 1] = state end
end

-- Return true if an ended task has expired before its index, because the retention period was shorter before.
local function is_gone(state, tag)
  return TERMINAL[state] and redis.call('EXISTS', prefix .. ':{' .. tag .. '}:task') == 0
end

local function follows_cursor(at, tag) return not cursor_at or at < cursor_at or (at == cursor_at and tag < cursor_id) end

local members, total = {}, 0
for _, state in ipairs(states) do
  local index = index_prefix .. state
  if TERMINAL[state] and installation == '' then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', micros(now() - retention * 1000000))
  end
  local offset, count, batch = 0, 0, nil
  repeat
    batch = redis.call('ZREVRANGEBYSCORE', index, cursor_at and cursor_us or '+inf', oldest,
      'WITHSCORES', 'LIMIT', offset, size + 1)
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
    offset = offset + size + 1
  until count > size or #batch < 2 * (size + 1)
  total = total + redis.call('ZCOUNT', index, oldest, '+inf')
end
table.sort(members, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)

local border = installation ~= '' and redis.call('HGET', installation, 'border') or ''
local page = {tostring(total), #members > size and '1' or '0', border}
local reads_contents, bytes = history_length ~= 0 or with_artifacts, 0
for i = 1, math.min(size, #members) do
  local keys = keys_of(prefix, members[i][2])
  local r = load_summary(keys)
  if r then
    if r.packed then r.status = unpack_status(keys, r) end
    bytes = bytes + math.max(#r.status, reads_contents and r.size or 0)
    if bytes > max_bytes and #page > 3 then
      page[2] = '1'
      break
    end
    page[#page + 1] = snapshot(keys, r, history_length, with_artifacts)
  end
end
return page
