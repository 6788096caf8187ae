-- newest_tasks: the tasks of several lists of tasks whose status is the newest; nothing changes.
-- KEYS  lists of tasks, each of one scope or context and one state
-- ARGV  [1] key prefix  [2] so many at most  [3] status not before, µs or '-inf'  [4] and not after, µs or '+inf'
-- returns {'0', µs now, a row for each, the newest first: what operator_row gives}; those whose record is gone don't come
-- requires: keys, operator_rows, time
local found, size = {}, tonumber(ARGV[2])
for _, index in ipairs(KEYS) do
  local batch = redis.call('ZREVRANGEBYSCORE', index, ARGV[4], ARGV[3], 'WITHSCORES', 'LIMIT', 0, size)
  for i = 1, #batch, 2 do found[#found + 1] = {batch[i], batch[i + 1], tonumber(batch[i + 1])} end
end
table.sort(found, function(a, b) return a[3] > b[3] or (a[3] == b[3] and a[1] > b[1]) end)
local answer = {'0', micros(now())}
for _, one in ipairs(found) do
  if #answer >= size + 2 then break end
  answer[#answer + 1] = operator_row(keys_of(ARGV[1], one[1])[1], one[2]) or nil
end
return answer
