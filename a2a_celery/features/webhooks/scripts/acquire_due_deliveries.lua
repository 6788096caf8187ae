-- acquire_due_deliveries: lease due delivery cursors to one deliverer. A cursor is due again when its lease ends.
-- returns {see describe_cursor, …}. Cursors without undelivered events and cursors of missing tasks are removed from
--       the list.
-- requires: deliveries, full_store, leases, time

-- Return the µs since the first failure of a delivery, or 0 if there was none.
local function failing_us(cursor)
  if not cursor.first_failed_at then return 0 end
  return math.max(0, now() - tonumber(cursor.first_failed_at))
end

allow_on_full_store(deliveries)
return lease_deliveries(deliveries, prefix, limit, lease_us, function(keys, r, config, cursor)
  if cursor.delivered >= tonumber(r.version) then return nil end
  update_delivery(keys, config, 'token', token)
  return describe_cursor(keys, r, config, cursor, failing_us(cursor))
end)
