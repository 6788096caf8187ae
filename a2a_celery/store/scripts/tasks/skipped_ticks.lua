-- skipped_ticks: return a schedule's ticks that created no task, newest first.
-- KEYS  ticks of the schedule
-- ARGV  none
-- returns the time of each tick in µs
local ticks = KEYS[1]

local reply = {}
for _, member in ipairs(redis.call('ZREVRANGE', ticks, 0, -1)) do
  reply[#reply + 1] = string.match(member, '^(%d+) $')
end
return reply
