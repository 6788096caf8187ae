-- postpone_delivery: release a delivery cursor, which is due again later.
-- KEYS  keys of the task
-- ARGV  quoted config id, token of the lease, µs until the cursor is due, '1' to count a failure, 'age' to start the
--       time since the first failure without counting a failure, 'pause' to exclude the wait from this time, '0' to
--       change neither, JSON of the failure ('' for none), JSON of the attempt ('' for none)
-- returns 1, or 0 if the cursor does not exist or the token no longer holds its lease
-- requires: attempts, deliveries, tasks, time
local config, token, after_us, counts, failure, attempt = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5], ARGV[6]

local r = load_record(KEYS)
if not r then return 0 end
local cursor, is_repeated = leased_delivery(KEYS, config, token)
if not cursor then return is_repeated and 1 or 0 end
local at = now()
update_delivery(KEYS, config, 'token', false, 'settled', token)
if counts == '1' then
  count_outcome(r, 'failed')
  update_delivery(KEYS, config, 'failures', micros(cursor.failures + 1))
end
if counts == '1' or counts == 'age' then
  update_delivery(KEYS, config, 'first_failed_at', cursor.first_failed_at or micros(at))
elseif counts == 'pause' and cursor.first_failed_at then
  update_delivery(KEYS, config, 'first_failed_at', micros(tonumber(cursor.first_failed_at) + after_us))
end
if failure ~= '' then update_delivery(KEYS, config, 'last_error', failure, 'last_error_at', micros(at)) end
record_attempt(KEYS, config, attempt, after_us, at)
schedule_delivery(KEYS, r, config, cursor.delivered, after_us, at)
return 1
