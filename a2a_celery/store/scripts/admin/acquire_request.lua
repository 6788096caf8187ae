-- acquire_request: take tokens from the bucket of an account. The bucket is stored as the time at which it is full
-- (GCRA).
-- returns '0': the tokens were taken | µs until the bucket has enough tokens; nothing changes. With debt allowed, the
--       tokens are always taken, and the reply is the µs until the bucket has the tokens for the next request.
-- requires: full_store

allow_on_full_store(bucket)
local time = redis.call('TIME')
local at = tonumber(time[1]) * 1000000 + tonumber(time[2])
local capacity = token_us * size
-- a later time may have been written with another clock or other settings
local latest = at + capacity + max_debt
local full_at = math.max(at, math.min(tonumber(redis.call('GET', bucket) or 0), latest)) + token_us * amount
if is_overdrawable then full_at = math.min(full_at, latest) end
local wait = string.format('%.0f', math.max(0, math.ceil(full_at + token_us * reserve - at - capacity)))
if wait ~= '0' and not is_overdrawable then return wait end
redis.call('SET', bucket, string.format('%.0f', full_at), 'PX', math.ceil((full_at - at) / 1000))
return wait
