-- postpone_runs: a watcher did not publish runs that acquire_due_runs gave: this time doesn't count. No effect on a claimed run.
-- KEYS  [1] dispatch  [2…] the record of each run's task
-- ARGV  three for each run: "<task id>.<run>", µs until it is due again, µs of its last publish ('' for unknown)
-- returns nil
-- requires: time
for i = 2, #KEYS do
  local name, again_us, published_us = ARGV[3 * i - 5], ARGV[3 * i - 4], ARGV[3 * i - 3]
  if redis.call('ZSCORE', KEYS[1], name) then
    redis.call('ZADD', KEYS[1], micros(now() + tonumber(again_us)), name)
    redis.call('HINCRBY', KEYS[i], 'republish_count', -1)
    if published_us == '' then
      redis.call('HDEL', KEYS[i], 'published_at')
    else
      redis.call('HSET', KEYS[i], 'published_at', string.match(name, '%d+$') .. ' ' .. published_us)
    end
  end
end
