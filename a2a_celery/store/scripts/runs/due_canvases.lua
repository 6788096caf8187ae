-- due_canvases: canvases to look at, for one watcher; each is due again later.
-- KEYS  [1] canvases
-- ARGV  [1] key prefix  [2] at most this many  [3] µs until they are due again
-- returns {task id, run, canvas, …}; runs that have ended are forgotten
-- requires: full_store, keys, time
allow_on_full_store(KEYS[1])
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))
local taken = {}
for _, name in ipairs(due) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local r = redis.call('HMGET', ARGV[1] .. ':{' .. quoted(task_id) .. '}:task', 'run', 'phase', 'canvas')
  if r[1] == run and r[2] == 'delegated' then
    redis.call('ZADD', KEYS[1], micros(now() + tonumber(ARGV[3])), name)
    for _, value in ipairs({task_id, run, r[3]}) do taken[#taken + 1] = value end
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return taken
