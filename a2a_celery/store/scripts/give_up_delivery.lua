-- give_up_delivery: a line is dead: no event is delivered to it until it is replayed, or its config replaced.
-- KEYS  a task's nine
-- ARGV  [1] config id, quoted  [2] token  [3] why  [4] the receiver's answer, '' if it was not asked
-- gives 'dead' | 'lost': the line is gone, or another's
local r = load(KEYS)
if not r then return 'lost' end
local line, repeated = held_line(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 'dead' or 'lost' end
change_line(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2], 'dead', ARGV[3], 'died_at', micros(now()))
if ARGV[4] ~= '' then change_line(KEYS, ARGV[1], 'answer', ARGV[4], 'answered_at', micros(now())) end
owed_to(KEYS, r, ARGV[1], false)
redis.call('ZREM', r.deliveries, tag(KEYS) .. ' ' .. ARGV[1])
redis.call('ZADD', r.dead_deliveries, micros(gone_at(KEYS)), tag(KEYS) .. ' ' .. ARGV[1])
prune(r.dead_deliveries)
return 'dead'
