-- delivery_metrics: return the number of pending deliveries, of deliveries that were given up, and of posts by outcome.
-- returns {waiting, dead, outcome, number, …}
-- requires: expiry

prune_expired(dead_deliveries)
return {
  redis.call('ZCARD', deliveries), redis.call('ZCARD', dead_deliveries), unpack(redis.call('HGETALL', outcomes)),
}
