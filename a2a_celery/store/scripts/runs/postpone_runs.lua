-- postpone_runs: undo acquire_due_runs for runs that a watcher did not publish. No effect on a claimed run.
-- KEYS  list of queued runs, then the record of each run's task
-- ARGV  for each run: "<task id>.<run>", µs until the run is due again, time of its last publication in µs (0 for
--       unknown, '' if the run was not published)
-- returns nil
-- requires: time
local dispatch, first_record = KEYS[1], 2
local first_run = 1

for i = first_record, #KEYS do
  local argument = first_run + (i - first_record) * 3
  local record, name, delay_us, published_us = KEYS[i], ARGV[argument], tonumber(ARGV[argument + 1]), ARGV[argument + 2]
  if redis.call('ZSCORE', dispatch, name) then
    redis.call('ZADD', dispatch, micros(now() + delay_us), name)
    redis.call('HINCRBY', record, 'republish_count', -1)
    if published_us == '' then
      redis.call('HDEL', record, 'published_at')
    else
      redis.call('HSET', record, 'published_at', string.match(name, '%d+$') .. ' ' .. published_us)
    end
  end
end
