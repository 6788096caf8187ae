-- mark_published: the broker has these runs; the watcher leaves them alone for a while. No effect on a claimed run; one
-- that a worker has in hand stays due when that falls silent.
-- KEYS  [1] dispatch  [2…] the record of each run's task
-- ARGV  two for each run: "<task id>.<run>", µs until a watcher looks at it, should no worker claim it
-- returns nil
-- requires: full_store, time
allow_on_full_store(KEYS[1])
for i = 2, #KEYS do
  local name, due = ARGV[2 * i - 3], now() + tonumber(ARGV[2 * i - 2])
  if redis.call('ZSCORE', KEYS[1], name) then
    local own = string.match(name, '%d+$')
    local run, before, silent_at = string.match(redis.call('HGET', KEYS[i], 'prefetched') or '', '^(%d+) (%d+) (%d+)$')
    redis.call('HSET', KEYS[i], 'published_at', own .. ' ' .. micros(now()))
    if run == own then
      due = math.max(due, tonumber(before))
      redis.call('HSET', KEYS[i], 'prefetched', run .. ' ' .. micros(due) .. ' ' .. silent_at)
      due = math.min(due, tonumber(silent_at))
    end
    redis.call('ZADD', KEYS[1], 'XX', micros(due), name)
  end
end
