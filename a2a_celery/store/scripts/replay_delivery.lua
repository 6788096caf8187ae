-- replay_delivery: a line that was given up lives again: what is owed to it is due at once.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] nonce, for repeated calls
-- gives 'missing' | 'replayed' | 'alive': it was not given up, or somebody else replayed it
local r = load(KEYS)
local line = r and load_line(KEYS, ARGV[1])
if not line then return 'missing' end
if not line.died_at then return line.settled == ARGV[2] and 'replayed' or 'alive' end
change_line(KEYS, ARGV[1], 'died_at', false, 'failures', false, 'first_failed_at', false, 'settled', ARGV[2])
owed_to(KEYS, r, ARGV[1], true)
redis.call('ZREM', r.dead_deliveries, tag(KEYS) .. ' ' .. ARGV[1])
due_in(KEYS, r, ARGV[1], line.delivered, 0)
return 'replayed'
