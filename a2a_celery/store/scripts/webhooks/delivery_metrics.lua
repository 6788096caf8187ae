-- delivery_metrics: how many posts came to what, and how many lines wait or were given up.
-- KEYS  [1] deliveries  [2] dead deliveries
-- ARGV  none
-- returns {waiting, dead, outcome, times, …}
-- requires: expiry
prune_expired(KEYS[2])
return {redis.call('ZCARD', KEYS[1]), redis.call('ZCARD', KEYS[2]), unpack(redis.call('HGETALL', KEYS[1] .. ':outcomes'))}
