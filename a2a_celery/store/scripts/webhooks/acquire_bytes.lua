-- acquire_bytes: an owner posts so many bytes to a host (GCRA: the bucket is the time at which it is full again).
-- KEYS  [1] the bucket
-- ARGV  [1] µs of the window  [2] how many bytes the bucket holds  [3] bytes of the post
-- returns '0': taken, and the last post may take more than was left  | µs until there is a byte; nothing changes
-- requires: full_store, time
allow_on_full_store(KEYS[1])
local at, window = now(), tonumber(ARGV[1])
-- at most a day of windows: another server's clock may have written it
local full = math.max(at, math.min(tonumber(redis.call('GET', KEYS[1]) or 0), at + 24 * window))
local wait = full - at - window
if wait >= 0 then return string.format('%.0f', math.ceil(wait) + 1) end
full = full + tonumber(ARGV[3]) * window / tonumber(ARGV[2])
redis.call('SET', KEYS[1], string.format('%.0f', full), 'PX', math.ceil((full - at) / 1000))
return '0'
