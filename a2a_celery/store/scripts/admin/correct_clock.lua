-- correct_clock: return the store's time. After a jump of the store's clock, correct the times that were stored before
-- the jump. A call that corrects a jump must contain the number of earlier corrections. If several watchers detect a
-- jump, only the first call therefore corrects it.
-- KEYS  installation, leases, pauses, suspended runs, reminders, and the lists whose members are corrected only after a
--       backward jump
-- ARGV  length of the jump in µs (negative for a backward jump, 0 to only read), number of corrections that the caller
--       has read, length of a lease in µs
-- returns {current time in µs, number of corrections}
-- requires: full_store, time
local installation, leases, pauses, suspended, reminders, first_list = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], 4
local jump, seen, lease_us = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3])

local PAGE = 1000
local at = now()

-- Add the jump to the scores of the members from rank `first` on. Moved members stay before or after the other members,
-- so the ranks of the other members do not change.
local function move(list, command, first)
  local members = redis.call(command, list, first, first + PAGE - 1, 'WITHSCORES')
  while #members > 0 do
    for i = 1, #members, 2 do redis.call('ZADD', list, micros(tonumber(members[i + 1]) + jump), members[i]) end
    first = first + PAGE
    members = redis.call(command, list, first, first + PAGE - 1, 'WITHSCORES')
  end
end

local corrections = redis.call('HGET', installation, 'clock') or '0'
if jump == 0 or corrections ~= seen then return {micros(at), corrections} end
allow_on_full_store(installation)
for _, name in ipairs(redis.call('ZRANGE', leases, 0, -1)) do -- a living worker renews its leases before they end
  redis.call('ZADD', leases, micros(at + lease_us), name)
end
if jump > 0 then
  move(pauses, 'ZREVRANGE', 0)
  move(suspended, 'ZREVRANGE', 0)
  move(reminders, 'ZREVRANGE', 0)
else
  for i = first_list, #KEYS do move(KEYS[i], 'ZRANGE', redis.call('ZCOUNT', KEYS[i], '-inf', micros(at))) end
end
redis.call('HSET', installation, 'clock_set_at', micros(at))
return {micros(at), micros(redis.call('HINCRBY', installation, 'clock', 1))}
