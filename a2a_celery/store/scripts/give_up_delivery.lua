-- give_up_delivery: a line is dead: no event is delivered to it until it is replayed, or its config replaced.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] token  [3] JSON: what an operator wants to know of it
-- gives 1, or 0 when the line is gone, or another's
local r = load(KEYS)
if not r then return 0 end
local line, repeated = held_line(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 1 or 0 end
change_line(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2], 'said', ARGV[3], 'said_at', micros(now()),
  'died_at', micros(now()))
count(r, 'given_up')
owed_to(KEYS, r, ARGV[1], false)
redis.call('ZREM', r.deliveries, tag(KEYS) .. ' ' .. ARGV[1])
redis.call('ZADD', r.dead_deliveries, micros(gone_at(KEYS)), tag(KEYS) .. ' ' .. ARGV[1])
prune(r.dead_deliveries)
return 1
