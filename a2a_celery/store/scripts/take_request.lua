-- take_request: a request of an owner takes a token of its bucket (GCRA: the bucket is the time at which it is full again).
-- KEYS  [1] the bucket
-- ARGV  [1] µs until a token is back  [2] how many the bucket holds
-- gives '0': taken  | µs until there is one; nothing changes
local time, each = redis.call('TIME'), tonumber(ARGV[1])
local at = tonumber(time[1]) * 1000000 + tonumber(time[2])
local whole = each * tonumber(ARGV[2])
-- never fuller than it can be: another server's clock, or another setting, may have written it
local full = math.max(at, math.min(tonumber(redis.call('GET', KEYS[1]) or 0), at + whole)) + each
local wait = full - at - whole
if wait > 0 then return string.format('%.0f', math.ceil(wait)) end
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - at) / 1000))
return '0'
