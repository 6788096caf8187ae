-- postpone_delivery: release a delivery cursor, which is due again later.
-- returns 1, or 0 if the cursor does not exist or the token no longer holds its lease
-- requires: attempts, deliveries, tasks, time

local r = load_record(keys)
if not r then return 0 end
local cursor, is_repeated = leased_delivery(keys, config_id, token)
if not cursor then return is_repeated and 1 or 0 end
local at = now()
update_delivery(keys, config_id, 'token', false, 'settled', token)
if counts_failure then
  count_outcome(r, 'failed')
  update_delivery(keys, config_id, 'failures', micros(cursor.failures + 1))
end
if starts_failing then
  update_delivery(keys, config_id, 'first_failed_at', cursor.first_failed_at or micros(at))
end
if failure then update_delivery(keys, config_id, 'last_error', failure, 'last_error_at', micros(at)) end
record_attempt(keys, config_id, attempt, after_us, at)
schedule_delivery(keys, r, config_id, cursor.delivered, after_us, at)
return 1
