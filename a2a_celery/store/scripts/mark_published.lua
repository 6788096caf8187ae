-- mark_published: the broker has the run; the watcher leaves it alone for a while. No effect on a claimed run.
-- KEYS  [1] dispatch
-- ARGV  [1] "<task id>.<run>"  [2] µs until it is published again, should no worker claim it
-- gives nil
redis.call('ZADD', KEYS[1], 'XX', micros(now() + tonumber(ARGV[2])), ARGV[1])
