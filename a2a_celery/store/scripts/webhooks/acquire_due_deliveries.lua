-- acquire_due_deliveries: lease due delivery cursors to one deliverer. A cursor is due again when its lease ends.
-- KEYS  deliveries
-- ARGV  key prefix, maximum number of cursors, length of the lease in µs, token, upper bound for the current time in µs
--       ('' for none)
-- returns {see describe_cursor, …}. Cursors without undelivered events and cursors of missing tasks are removed from
--       the list.
-- requires: deliveries, full_store, leases, time
local deliveries = KEYS[1]
local prefix, limit, lease_us, token, latest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4], tonumber(ARGV[5])

-- Return the µs since the first failure of a delivery, or since the store's clock was set, whichever is shorter.
local function failing_us(cursor)
  if not cursor.first_failed_at then return 0 end
  local clock_set_at = tonumber(redis.call('HGET', prefix .. ':installation', 'clock_set_at') or '0')
  return math.max(0, math.min(now(), latest or math.huge) - math.max(tonumber(cursor.first_failed_at), clock_set_at))
end

allow_on_full_store(deliveries)
return lease_deliveries(deliveries, prefix, limit, lease_us, function(keys, r, config, cursor)
  if cursor.delivered >= tonumber(r.version) then return nil end
  update_delivery(keys, config, 'token', token)
  return describe_cursor(keys, r, config, cursor, failing_us(cursor))
end)
