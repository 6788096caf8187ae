-- replay_delivery: what a line failed to deliver is due at once, also after it was given up.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2] config id, quoted  [3] nonce, for repeated calls
-- returns 'missing' | 'replayed' | 'alive': nothing failed, or a deliverer posts to it now
-- requires: deliveries, tasks
local r = load_record(KEYS)
local line = r and (ARGV[1] == '*' or r.scope == ARGV[1]) and load_delivery(KEYS, ARGV[2])
if not line then return 'missing' end
if line.settled == ARGV[3] then return 'replayed' end
return retry_delivery(KEYS, r, ARGV[2], line, ARGV[3]) and 'replayed' or 'alive'
