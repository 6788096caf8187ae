-- acquire_due_deliveries: lines to deliver events of, for one deliverer; each is due again when its lease is over.
-- KEYS  [1] deliveries
-- ARGV  [1] key prefix  [2] at most this many  [3] lease, µs  [4] token
-- returns {{task id, context, agent, config id, quoted, sealed, delivered, version, failures, µs since the first,
--       traceparent of the newest turn, µs now, bytes of the largest entry of its log, bytes of the task, owner}, …};
--       lines to which nothing is owed, and those of tasks that are gone, are forgotten
-- requires: deliveries, full_store, leases
allow_on_full_store(KEYS[1])
return lease_deliveries(KEYS[1], ARGV[1], ARGV[2], ARGV[3], function(keys, r, config, line)
  if line.delivered >= tonumber(r.version) then return nil end
  update_delivery(keys, config, 'token', ARGV[4])
  return leased_row(keys, r, config, line)
end)
