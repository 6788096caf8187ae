-- mark_refused: the broker did not take a run that a watcher gave it: this time doesn't count. No effect on a claimed run.
-- KEYS  [1] dispatch  [2] the record of its task
-- ARGV  [1] "<task id>.<run>"  [2] µs until it is published again
-- gives nil
if redis.call('HGET', KEYS[2], 'dispatched_again') then redis.call('HINCRBY', KEYS[2], 'dispatched_again', -1) end
redis.call('ZADD', KEYS[1], 'XX', micros(now() + tonumber(ARGV[2])), ARGV[1])
