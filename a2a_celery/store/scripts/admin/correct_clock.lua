-- correct_clock: tells the store's time; after a jump of its clock, corrects the times that were stored before. One caller
-- corrects each jump: the one that has seen all earlier corrections.
-- KEYS  [1] installation  [2] leases  [3] pauses  [4…] lists whose members may be due too early, but not too late
-- ARGV  [1] µs of the jump, negative for backward, 0 to only read  [2] how many corrections the caller has seen
--       [3] lease, µs
-- returns {µs now, how many corrections there have been}
-- requires: full_store, time
local PAGE = 1000
local jump, at = tonumber(ARGV[1]), now()

-- Moved members stay on their side of those that are not moved yet, so ranks tell what is left.
local function move(list, command, first)
  local members = redis.call(command, list, first, first + PAGE - 1, 'WITHSCORES')
  while #members > 0 do
    for i = 1, #members, 2 do redis.call('ZADD', list, micros(tonumber(members[i + 1]) + jump), members[i]) end
    first = first + PAGE
    members = redis.call(command, list, first, first + PAGE - 1, 'WITHSCORES')
  end
end

local corrections = redis.call('HGET', KEYS[1], 'clock') or '0'
if jump == 0 or corrections ~= ARGV[2] then return {micros(at), corrections} end
allow_on_full_store(KEYS[1])
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, -1)) do -- a living worker renews its leases before they end
  redis.call('ZADD', KEYS[2], micros(at + tonumber(ARGV[3])), name)
end
if jump > 0 then
  move(KEYS[3], 'ZREVRANGE', 0)
else
  for i = 4, #KEYS do move(KEYS[i], 'ZRANGE', redis.call('ZCOUNT', KEYS[i], '-inf', micros(at))) end
end
redis.call('HSET', KEYS[1], 'clock_set_at', micros(at))
return {micros(at), micros(redis.call('HINCRBY', KEYS[1], 'clock', 1))}
