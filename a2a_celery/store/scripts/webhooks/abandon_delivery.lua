-- abandon_delivery: a line is dead: no event is delivered to it until it is replayed, or its config replaced.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] token  [3] JSON: what an operator wants to know of it
--       [4] JSON of the attempt, '' for none
-- returns 1, or 0 when the line is gone, or another's
-- requires: attempts, deliveries, expiry, keys, tasks, time
local r = load_record(KEYS)
if not r then return 0 end
local line, repeated = leased_delivery(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 1 or 0 end
update_delivery(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2], 'last_error', ARGV[3], 'last_error_at', micros(now()),
  'abandoned_at', micros(now()))
record_attempt(KEYS, ARGV[1], ARGV[4])
count_outcome(r, 'given_up')
set_delivery_enabled(KEYS, r, ARGV[1], false)
redis.call('ZREM', r.deliveries, task_tag(KEYS) .. ' ' .. ARGV[1])
redis.call('ZADD', r.dead_deliveries, micros(expires_at(KEYS)), task_tag(KEYS) .. ' ' .. ARGV[1])
prune_expired(r.dead_deliveries)
return 1
