-- register_blobs: a task has blobs in the object store, or will; said before the first of them is written.
-- KEYS  [1] blobs  [2] doomed blobs
-- ARGV  [1] tag of the task  [2] µs for which it need not exist yet
-- returns 'new' | 'known' | 'doomed': the folder of a task with that tag is being removed
-- requires: time
if redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 'doomed' end
return redis.call('ZADD', KEYS[1], 'NX', micros(now() + tonumber(ARGV[2])), ARGV[1]) == 1 and 'new' or 'known'
