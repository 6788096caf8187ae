-- newest_tasks: return the tasks with the newest status in several indexes, newest first.
-- KEYS  indexes, or other lists of tasks that are scored by the time of the status
-- ARGV  key prefix, maximum number of tasks, µs of the oldest status or '-inf', µs of the newest status or '+inf'
-- returns {'0', current time in µs, task_summary of each task}, without tasks whose record is missing
-- requires: keys, task_summary, time
local prefix, limit, oldest, newest = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]

local members = {}
for _, index in ipairs(KEYS) do
  local batch = redis.call('ZREVRANGEBYSCORE', index, newest, oldest, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #batch, 2 do members[#members + 1] = {batch[i], batch[i + 1], tonumber(batch[i + 1])} end
end
table.sort(members, function(a, b) return a[3] > b[3] or (a[3] == b[3] and a[1] > b[1]) end)
local reply = {'0', micros(now())}
for _, member in ipairs(members) do
  if #reply >= limit + 2 then break end
  reply[#reply + 1] = task_summary(keys_of(prefix, member[1])[1], member[2]) or nil
end
return reply
