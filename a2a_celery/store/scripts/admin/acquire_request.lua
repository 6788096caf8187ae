-- acquire_request: take a token from the bucket of an account. The bucket is stored as the time at which it is full
-- (GCRA).
-- returns '0': the token was taken | µs until the bucket has a token; nothing changes
-- requires: full_store

allow_on_full_store(bucket)
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000000 + tonumber(time[2])
local token_us = 1000000 / per_second -- time in which one token is added
local capacity = token_us * burst
-- a later time may have been written with another clock or other settings
local full_at = math.max(at, math.min(tonumber(redis.call('GET', bucket) or 0), at + capacity)) + token_us
local wait = string.format('%.0f', math.max(0, math.ceil(full_at - at - capacity)))
if wait ~= '0' then return wait end
redis.call('SET', bucket, string.format('%.0f', full_at), 'PX', math.ceil((full_at - at) / 1000))
return wait
