-- blobs_in_use: how many tasks have blobs, or folders that are to be removed.
-- KEYS  [1] blobs  [2] doomed blobs
-- ARGV  none
-- returns the number
return redis.call('ZCARD', KEYS[1]) + redis.call('ZCARD', KEYS[2])
