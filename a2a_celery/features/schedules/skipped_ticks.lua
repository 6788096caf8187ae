-- skipped_ticks: return a schedule's ticks that created no task, newest first.
-- returns the time of each tick in µs

local reply = {}
for _, member in ipairs(redis.call('ZREVRANGE', ticks, 0, -1)) do
  reply[#reply + 1] = string.match(member, '^(%d+) $')
end
return reply
