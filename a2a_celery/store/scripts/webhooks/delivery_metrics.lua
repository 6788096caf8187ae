-- delivery_metrics: return the number of pending deliveries, of deliveries that were given up, and of posts by outcome.
-- KEYS  deliveries, dead deliveries
-- ARGV  none
-- returns {waiting, dead, outcome, number, …}
-- requires: expiry
local deliveries, dead_deliveries = KEYS[1], KEYS[2]

prune_expired(dead_deliveries)
return {
  redis.call('ZCARD', deliveries), redis.call('ZCARD', dead_deliveries), unpack(redis.call('HGETALL', deliveries .. ':outcomes')),
}
