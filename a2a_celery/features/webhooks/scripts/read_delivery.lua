-- read_delivery: return a delivery with its newest attempts.
-- returns nil: the config does not exist | {current time in µs, delivery_summary, ids of the requested posts, attempts,
--       newest first}
-- requires: attempts, deliveries, keys, tasks, time

local r = load_record(keys)
local cursor = r and (scope == '*' or r.scope == scope) and load_delivery(keys, config_id)
if not cursor then return nil end
local due = redis.call('ZSCORE', r.deliveries, task_tag(keys) .. ' ' .. config_id)
return {
  micros(now()), delivery_summary(r, config_id, cursor, due), redis.call('HGET', keys.cursors, config_id .. ':requested') or '',
  read_attempts(keys, config_id),
}
