-- record_delivery: a line's events were delivered, or need not be, up to a version; the lease begins anew.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] token  [3] version  [4] lease, µs  [5] '1' if the last of them was posted
--       [6] µs at which the event of that version was recorded, '' for unknown  [7] JSON of the attempt, '' for none
-- returns 'more': it is still in hand | 'done': nothing is owed to it now | 'lost': the line is gone, or another's, or the log
--       has another event there, or none: then the line is due at once, from its place
-- requires: attempts, deliveries, full_store, log_lookup, tasks, time
local r = load_record(KEYS)
if not r then return 'lost' end
local line, repeated = leased_delivery(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 'done' or 'lost' end
allow_on_full_store(KEYS[1])
if ARGV[6] ~= '' and not has_event(KEYS, ARGV[3], ARGV[6]) then
  update_delivery(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2])
  schedule_delivery(KEYS, r, ARGV[1], line.delivered, 0)
  return 'lost'
end
local delivered = math.max(line.delivered, math.min(tonumber(ARGV[3]), r.version))
if delivered > line.delivered then
  update_delivery(KEYS, ARGV[1], 'delivered', micros(delivered))
  if ARGV[5] == '1' then count_outcome(r, 'delivered') end
  record_attempt(KEYS, ARGV[1], ARGV[7])
end
if (ARGV[5] == '1' or delivered >= r.version) and (line.first_failed_at or line.last_error) then
  update_delivery(KEYS, ARGV[1], 'failures', false, 'first_failed_at', false, 'last_error', false, 'last_error_at', false)
end
schedule_delivery(KEYS, r, ARGV[1], delivered, tonumber(ARGV[4]))
if delivered < r.version then return 'more' end
update_delivery(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2])
return 'done'
