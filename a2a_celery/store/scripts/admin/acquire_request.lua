-- acquire_request: take tokens for a request from the bucket of its owner (GCRA: the bucket is the time at which it is
-- full).
-- KEYS  bucket
-- ARGV  µs in which one token returns, size of the bucket, tokens to take, tokens that must be left for the next
--       request
-- returns '0': taken | µs until there are enough tokens; then nothing changes
-- requires: full_store
local bucket = KEYS[1]
local token_us, size, amount, reserve = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

allow_on_full_store(bucket)
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000000 + tonumber(time[2])
local capacity = token_us * size
-- bounded by the capacity: another server's clock, or another setting, may have written a later time
local full_at = math.max(at, math.min(tonumber(redis.call('GET', bucket) or 0), at + capacity)) + token_us * amount
local wait = full_at + token_us * reserve - at - capacity
if wait > 0 then return string.format('%.0f', math.ceil(wait)) end
redis.call('SET', bucket, string.format('%.0f', full_at), 'PX', math.ceil((full_at - at) / 1000))
return '0'
