-- abandon_delivery: give up a delivery. No event is delivered until the delivery is replayed or the config is replaced.
-- KEYS  keys of the task
-- ARGV  quoted config id, token of the lease, JSON of the failure, JSON of the attempt, which counts as a failure (''
--       for none)
-- returns 1, or 0 if the cursor does not exist or the token no longer holds its lease
-- requires: attempts, deliveries, expiry, keys, tasks, time
local config, token, failure, attempt = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local r = load_record(KEYS)
if not r then return 0 end
local cursor, is_repeated = leased_delivery(KEYS, config, token)
if not cursor then return is_repeated and 1 or 0 end
update_delivery(KEYS, config, 'token', false, 'settled', token, 'last_error', failure, 'last_error_at', micros(now()),
  'abandoned_at', micros(now()))
if attempt ~= '' then update_delivery(KEYS, config, 'failures', micros(cursor.failures + 1)) end
record_attempt(KEYS, config, attempt)
count_outcome(r, 'given_up')
set_delivery_enabled(KEYS, r, config, false)
redis.call('ZREM', r.deliveries, task_tag(KEYS) .. ' ' .. config)
redis.call('ZADD', r.dead_deliveries, micros(expires_at(KEYS)), task_tag(KEYS) .. ' ' .. config)
prune_expired(r.dead_deliveries)
return 1
