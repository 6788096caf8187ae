-- acquire_bytes: take bytes for a post from the bucket of an account and a host. The bucket is stored as the time at
-- which it is full (GCRA).
-- KEYS  bucket
-- ARGV  µs in which the bucket refills, size of the bucket in bytes, bytes of the post
-- returns '0': the bytes were taken; a post may take more bytes than the bucket has | µs until the bucket has a byte;
--       nothing changes
-- requires: full_store, time
local bucket = KEYS[1]
local window, size, amount = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])

allow_on_full_store(bucket)
local at = now()
-- bounded by 24 windows, because a later time may have been written with another clock
local full_at = math.max(at, math.min(tonumber(redis.call('GET', bucket) or 0), at + 24 * window))
local wait = full_at - at - window
if wait >= 0 then return string.format('%.0f', math.ceil(wait) + 1) end
full_at = full_at + amount * window / size
redis.call('SET', bucket, string.format('%.0f', full_at), 'PX', math.ceil((full_at - at) / 1000))
return '0'
