-- mark_published: the broker has the run; the watcher leaves it alone for a while. No effect on a claimed run.
-- KEYS  [1] dispatch  [2] the task's record, if the broker did not take it: then this time doesn't count
-- ARGV  [1] "<task id>.<run>"  [2] µs until it is published again, should no worker claim it
-- gives nil
if KEYS[2] and redis.call('HGET', KEYS[2], 'dispatched_again') then
  redis.call('HINCRBY', KEYS[2], 'dispatched_again', -1)
end
redis.call('ZADD', KEYS[1], 'XX', micros(now() + tonumber(ARGV[2])), ARGV[1])
