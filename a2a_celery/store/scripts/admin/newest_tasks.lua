-- newest_tasks: return the tasks of several indexes with the newest status, newest first, equal times by descending id.
-- KEYS  indexes, or other lists of tasks that are scored by the time of the status
-- ARGV  key prefix, maximum number of tasks, µs of the oldest status or '-inf', µs of the newest status or '+inf',
--       µs of the cursor ('' for the first page), id of the cursor
-- returns {'0', µs now, task_summary of each task}, without tasks whose record is missing
-- requires: keys, task_summary, time
local prefix, limit, oldest, newest = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local cursor_at, cursor_id = tonumber(ARGV[5]), ARGV[6]

local function follows_cursor(at, tag) return not cursor_at or at < cursor_at or (at == cursor_at and tag < cursor_id) end

local members = {}
for _, index in ipairs(KEYS) do
  local offset, count, batch = 0, 0, nil
  repeat
    batch = redis.call('ZREVRANGEBYSCORE', index, newest, oldest, 'WITHSCORES', 'LIMIT', offset, limit)
    for i = 1, #batch, 2 do
      local at = tonumber(batch[i + 1])
      if follows_cursor(at, batch[i]) then
        members[#members + 1] = {batch[i], batch[i + 1], at}
        count = count + 1
      end
    end
    offset = offset + limit
  until count >= limit or #batch < 2 * limit
end
table.sort(members, function(a, b) return a[3] > b[3] or (a[3] == b[3] and a[1] > b[1]) end)
local reply = {'0', micros(now())}
for _, member in ipairs(members) do
  if #reply >= limit + 2 then break end
  reply[#reply + 1] = task_summary(keys_of(prefix, member[1])[1], member[2]) or nil
end
return reply
