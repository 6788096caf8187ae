-- take_due_runs: runs that no worker claimed in time, for one watcher; each is due again later, twice as late each time.
-- KEYS  [1] dispatch
-- ARGV  [1] key prefix  [2] at most this many  [3] µs to the next time, the first of them  [4] µs, the longest
-- gives {task id, run, agent, options, …}; runs of tasks that are gone are forgotten
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))
local taken = {}
for _, name in ipairs(due) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local record = ARGV[1] .. ':{' .. quoted(task_id) .. '}:task'
  local r = redis.call('HMGET', record, 'run', 'phase', 'agent', 'options')
  if r[1] == run and r[2] == 'queued' then
    redis.call('HDEL', record, 'held')
    local times = redis.call('HINCRBY', record, 'dispatched_again', 1)
    local wait = math.min(tonumber(ARGV[3]) * 2 ^ (times - 1), tonumber(ARGV[4]))
    redis.call('ZADD', KEYS[1], micros(math.max(now(), begins_at(r[4])) + wait), name)
    for _, value in ipairs({task_id, run, r[3], r[4] or ''}) do taken[#taken + 1] = value end
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return taken
