-- list_tasks: a page of a scope's tasks, newest status first, equal times by id descending.
-- KEYS  [1] index prefix (of a scope, or of one of its contexts)
-- ARGV  [1] state, '0' for all  [2] status not before, µs  [3] page size  [4] cursor: µs, '' for the first page
--       [5] cursor: id  [6] history length, -1 for all  [7] '1' with artifacts  [8] key prefix  [9] retention, s
--       [10] installation key where ended tasks go to an archive, else ''  [11] bytes of tasks beyond which the page ends, '' for
--       no end; a page has one task at least
-- returns {how many there are in all, '1' if there are more pages, border of the archive ('' for none), snapshots …}
-- requires: keys, snapshot, states, time, transitions
local size, cursor_at, cursor_id = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local states = {}
for state in pairs(LEGAL) do
  if ARGV[1] == '0' or tonumber(ARGV[1]) == state then states[#states + 1] = state end
end

-- A task may have been kept for a shorter time than its list, under an earlier setting.
local function is_gone(state, id)
  return TERMINAL[state] and redis.call('EXISTS', ARGV[8] .. ':{' .. id .. '}:task') == 0
end

local function qualifies(at, id) return not cursor_at or at < cursor_at or (at == cursor_at and id < cursor_id) end

local found, total = {}, 0
for _, state in ipairs(states) do
  local index = KEYS[1] .. state
  if TERMINAL[state] and ARGV[10] == '' then
    redis.call('ZREMRANGEBYSCORE', index, '-inf', micros(now() - tonumber(ARGV[9]) * 1000000))
  end
  local offset, taken, batch = 0, 0, nil
  repeat
    batch = redis.call('ZREVRANGEBYSCORE', index, cursor_at and ARGV[4] or '+inf', ARGV[2],
      'WITHSCORES', 'LIMIT', offset, size + 1)
    for i = 1, #batch, 2 do
      local at = tonumber(batch[i + 1])
      if is_gone(state, batch[i]) then
        redis.call('ZREM', index, batch[i])
        offset = offset - 1
      elseif qualifies(at, batch[i]) then
        found[#found + 1] = {at, batch[i]}
        taken = taken + 1
      end
    end
    offset = offset + size + 1
  until taken > size or #batch < 2 * (size + 1)
  total = total + redis.call('ZCOUNT', index, ARGV[2], '+inf')
end
table.sort(found, function(a, b) return a[1] > b[1] or (a[1] == b[1] and a[2] > b[2]) end)

local border = ARGV[10] ~= '' and redis.call('HGET', ARGV[10], 'border') or ''
local page = {tostring(total), #found > size and '1' or '0', border}
local reads_contents, bytes, most = ARGV[6] ~= '0' or ARGV[7] == '1', 0, tonumber(ARGV[11]) or math.huge
for i = 1, math.min(size, #found) do
  local keys = keys_of(ARGV[8], found[i][2])
  local r = load_summary(keys)
  if r then
    bytes = bytes + math.max(#r.status, reads_contents and r.size or 0)
    if bytes > most and #page > 3 then
      page[2] = '1'
      break
    end
    page[#page + 1] = snapshot(keys, r, tonumber(ARGV[6]), ARGV[7] == '1')
  end
end
return page
