-- replay_delivery: schedule the undelivered events immediately, even if the delivery was given up.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), quoted config id, nonce of the call
-- returns 'missing' | 'replayed', even for a repeated call | 'alive': no delivery failed, or a deliverer has leased the
--       cursor
-- requires: deliveries, tasks
local scope, config, nonce = ARGV[1], ARGV[2], ARGV[3]

local r = load_record(KEYS)
local cursor = r and (scope == '*' or r.scope == scope) and load_delivery(KEYS, config)
if not cursor then return 'missing' end
if cursor.settled == nonce then return 'replayed' end
return retry_delivery(KEYS, r, config, cursor, nonce) and 'replayed' or 'alive'
