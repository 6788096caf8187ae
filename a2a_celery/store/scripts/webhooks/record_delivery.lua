-- record_delivery: move a delivery cursor to a version up to which all subscribed events were delivered, and renew its
-- lease.
-- KEYS  keys of the task
-- ARGV  quoted config id, token of the lease, version, length of the lease in µs, '1' if the event of that version was
--       posted, time in µs at which the event was recorded ('' for unknown), JSON of the attempt ('' for none)
-- returns 'more': further events are undelivered, and the cursor stays leased | 'done': all events are delivered
--       | 'lost': the cursor does not exist, the token no longer holds its lease, or the log does not have the event.
--       In the last case, the cursor is due immediately, at its stored position.
-- requires: attempts, deliveries, full_store, log_lookup, tasks, time
local record = KEYS[1]
local config, token, version, lease_us = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local was_posted, recorded_us, attempt = ARGV[5] == '1', ARGV[6], ARGV[7]

local r = load_record(KEYS)
if not r then return 'lost' end
local cursor, is_repeated = leased_delivery(KEYS, config, token)
if not cursor then return is_repeated and 'done' or 'lost' end
allow_on_full_store(record)
if recorded_us ~= '' and not has_event(KEYS, r, version, recorded_us) then
  update_delivery(KEYS, config, 'token', false, 'settled', token)
  schedule_delivery(KEYS, r, config, cursor.delivered, 0)
  return 'lost'
end
local delivered = math.max(cursor.delivered, math.min(version, r.version))
if delivered > cursor.delivered then
  update_delivery(KEYS, config, 'delivered', micros(delivered))
  if was_posted then count_outcome(r, 'delivered') end
  record_attempt(KEYS, config, attempt)
end
if (was_posted or delivered >= r.version) and (cursor.first_failed_at or cursor.last_error) then
  update_delivery(KEYS, config, 'failures', false, 'first_failed_at', false, 'last_error', false, 'last_error_at', false)
end
schedule_delivery(KEYS, r, config, delivered, lease_us)
if delivered < r.version then return 'more' end
update_delivery(KEYS, config, 'token', false, 'settled', token)
return 'done'
