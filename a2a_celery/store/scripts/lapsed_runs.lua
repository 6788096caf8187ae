-- lapsed_runs: runs whose lease is over; nothing changes.
-- KEYS  [1] leases
-- ARGV  [1] key prefix  [2] at most this many
-- gives {task id, run, agent, attempt, how many there may be, '1' if it was handed back, …}; leases of tasks that are gone are forgotten
local lapsed = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local r = redis.call('HMGET', ARGV[1] .. ':{' .. quoted(task_id) .. '}:task', 'run', 'agent', 'attempt', 'max_attempts',
    'handed_back')
  if r[1] == run then
    for _, value in ipairs({task_id, run, r[2], r[3], r[4] or '1', r[5] == run and '1' or '0'}) do lapsed[#lapsed + 1] = value end
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return lapsed
