-- due_canvases: return canvases that are due for a poll, each to one watcher.
-- returns {task id, run, canvas, …}. Runs that have ended are removed from the list.
-- requires: full_store, keys, time

allow_on_full_store(canvases)
local due = redis.call('ZRANGEBYSCORE', canvases, '-inf', micros(now()), 'LIMIT', 0, limit)
local reply = {}
for _, name in ipairs(due) do
  local record, task_id, run = record_of_run(prefix, name)
  local r = redis.call('HMGET', record, 'run', 'phase', 'canvas')
  if r[1] == run and r[2] == 'delegated' then
    redis.call('ZADD', canvases, micros(now() + delay_us), name)
    for _, value in ipairs({task_id, run, r[3]}) do reply[#reply + 1] = value end
  else
    redis.call('ZREM', canvases, name)
  end
end
return reply
