-- postpone_delivery: a line is given back, and due again later.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] token  [3] µs until it is due  [4] '1' if that counts as a failure, 'age' if it is
--       none, but its failing begins with it at the latest
--       [5] JSON: what an operator wants to know of it, '' for nothing  [6] JSON of the attempt, '' for none
-- returns 1, or 0 when the line is gone, or another's
-- requires: attempts, deliveries, tasks, time
local r = load_record(KEYS)
if not r then return 0 end
local line, repeated = leased_delivery(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 1 or 0 end
local at = now()
update_delivery(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2])
if ARGV[4] == '1' then
  count_outcome(r, 'failed')
  update_delivery(KEYS, ARGV[1], 'failures', micros(line.failures + 1))
end
if ARGV[4] ~= '0' then update_delivery(KEYS, ARGV[1], 'first_failed_at', line.first_failed_at or micros(at)) end
if ARGV[5] ~= '' then update_delivery(KEYS, ARGV[1], 'last_error', ARGV[5], 'last_error_at', micros(at)) end
record_attempt(KEYS, ARGV[1], ARGV[6], tonumber(ARGV[3]), at)
schedule_delivery(KEYS, r, ARGV[1], line.delivered, tonumber(ARGV[3]), at)
return 1
