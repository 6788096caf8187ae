-- record_delivery: move a delivery cursor to a version up to which all subscribed events were delivered, and renew its
-- lease.
-- returns 'more': further events are undelivered, and the cursor stays leased | 'done': all events are delivered
--       | 'lost': the cursor does not exist, the token no longer holds its lease, or the log does not have the event.
--       In the last case, the cursor is due immediately, at its stored position.
-- requires: attempts, deliveries, full_store, log_lookup, tasks, time

local r = load_record(keys)
if not r then return 'lost' end
local cursor, is_repeated = leased_delivery(keys, config_id, token)
if not cursor then return is_repeated and 'done' or 'lost' end
allow_on_full_store(keys.record)
if recorded_us ~= '0' and not has_event(keys, r, version, recorded_us) then
  update_delivery(keys, config_id, 'token', false, 'settled', token)
  schedule_delivery(keys, r, config_id, cursor.delivered, 0)
  return 'lost'
end
local delivered = math.max(cursor.delivered, math.min(version, r.version))
if delivered > cursor.delivered then
  update_delivery(keys, config_id, 'delivered', micros(delivered))
  if posted then count_outcome(r, 'delivered') end
  record_attempt(keys, config_id, attempt)
end
if (posted or delivered >= r.version) and (cursor.first_failed_at or cursor.last_error) then
  update_delivery(keys, config_id, 'failures', false, 'first_failed_at', false, 'last_error', false, 'last_error_at', false)
end
schedule_delivery(keys, r, config_id, delivered, lease_us)
if delivered < r.version then return 'more' end
update_delivery(keys, config_id, 'token', false, 'settled', token)
return 'done'
