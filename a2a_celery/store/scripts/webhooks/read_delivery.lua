-- read_delivery: return a delivery with its newest attempts.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), quoted config id
-- returns nil: the config does not exist | {current time in µs, delivery_summary, ids of the requested posts, attempts,
--       newest first}
-- requires: attempts, deliveries, delivery_summary, keys, tasks, time
local push = KEYS[9]
local scope, config = ARGV[1], ARGV[2]

local r = load_record(KEYS)
local cursor = r and (scope == '*' or r.scope == scope) and load_delivery(KEYS, config)
if not cursor then return nil end
local due = redis.call('ZSCORE', r.deliveries, task_tag(KEYS) .. ' ' .. config)
return {
  micros(now()), delivery_summary(r, config, cursor, due), redis.call('HGET', push, config .. ':requested') or '',
  read_attempts(KEYS, config),
}
