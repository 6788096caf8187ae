-- abandon_delivery: give up a delivery. No event is delivered until the delivery is replayed or the config is replaced.
-- returns 1, or 0 if the cursor does not exist or the token no longer holds its lease
-- requires: attempts, deliveries, expiry, keys, tasks, time

local r = load_record(keys)
if not r then return 0 end
local cursor, is_repeated = leased_delivery(keys, config_id, token)
if not cursor then return is_repeated and 1 or 0 end
update_delivery(keys, config_id, 'token', false, 'settled', token, 'last_error', failure, 'last_error_at', micros(now()),
  'abandoned_at', micros(now()))
if attempt then update_delivery(keys, config_id, 'failures', micros(cursor.failures + 1)) end
record_attempt(keys, config_id, attempt)
count_outcome(r, 'given_up')
set_delivery_enabled(keys, r, config_id, false)
redis.call('ZREM', r.deliveries, task_tag(keys) .. ' ' .. config_id)
redis.call('ZADD', r.dead_deliveries, micros(expires_at(keys)), task_tag(keys) .. ' ' .. config_id)
prune_expired(r.dead_deliveries)
return 1
