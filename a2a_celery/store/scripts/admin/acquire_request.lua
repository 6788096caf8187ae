-- acquire_request: take tokens for a request from the bucket of its owner (GCRA: the bucket is the time at which it is full again).
-- KEYS  [1] the bucket
-- ARGV  [1] µs until a token is back  [2] how many the bucket holds  [3] tokens to take
--       [4] tokens that must be left then, for the request that follows
-- returns '0': taken  | µs until there are enough; nothing changes
-- requires: full_store
allow_on_full_store(KEYS[1])
local time, each = redis.call('TIME'), tonumber(ARGV[1])
local at = tonumber(time[1]) * 1000000 + tonumber(time[2])
local whole = each * tonumber(ARGV[2])
local cost = each * tonumber(ARGV[3])
-- never fuller than it can be: another server's clock, or another setting, may have written it
local full = math.max(at, math.min(tonumber(redis.call('GET', KEYS[1]) or 0), at + whole)) + cost
local wait = full + each * tonumber(ARGV[4]) - at - whole
if wait > 0 then return string.format('%.0f', math.ceil(wait)) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - at) / 1000))
return '0'
