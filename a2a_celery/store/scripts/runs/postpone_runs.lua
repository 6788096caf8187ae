-- postpone_runs: undo acquire_due_runs for runs that a watcher did not publish. No effect on a claimed run.
-- returns nil
-- requires: keys, time

local function set_time(record, field, name, us)
  if us then
    redis.call('HSET', record, field, string.match(name, '%d+$') .. ' ' .. us)
  else
    redis.call('HDEL', record, field)
  end
end

for _, postponed in ipairs(runs) do
  local name = postponed.name
  local record = record_of_run(prefix, name)
  if redis.call('ZSCORE', dispatch, name) then
    redis.call('ZADD', dispatch, micros(now() + postponed.delay_us), name)
    redis.call('HINCRBY', record, 'republish_count', -1)
    set_time(record, 'published_at', name, postponed.published_us)
    set_time(record, 'unreported_since', name, postponed.unreported_us)
  end
end
