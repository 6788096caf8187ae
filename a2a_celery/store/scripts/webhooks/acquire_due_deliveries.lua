-- acquire_due_deliveries: lease due delivery cursors to one deliverer. A cursor is due again when its lease ends.
-- KEYS  deliveries
-- ARGV  key prefix, maximum number of cursors, length of the lease in µs, token
-- returns {see describe_cursor, …}. Cursors without undelivered events and cursors of missing tasks are removed from
--       the list.
-- requires: deliveries, full_store, leases
local deliveries = KEYS[1]
local prefix, limit, lease_us, token = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

allow_on_full_store(deliveries)
return lease_deliveries(deliveries, prefix, limit, lease_us, function(keys, r, config, cursor)
  if cursor.delivered >= tonumber(r.version) then return nil end
  update_delivery(keys, config, 'token', token)
  return describe_cursor(keys, r, config, cursor)
end)
