-- replay_delivery: schedule the undelivered events immediately, even if the delivery was given up.
-- returns 'missing' | 'replayed', even for a repeated call | 'alive': no delivery failed, or a deliverer has leased the
--       cursor
-- requires: deliveries, tasks

local r = load_record(keys)
local cursor = r and (scope == '*' or r.scope == scope) and load_delivery(keys, config_id)
if not cursor then return 'missing' end
if cursor.settled == nonce then return 'replayed' end
return retry_delivery(keys, r, config_id, cursor, nonce) and 'replayed' or 'alive'
