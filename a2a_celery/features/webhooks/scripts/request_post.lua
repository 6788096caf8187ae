-- request_post: request the post of an event that was delivered before, or of a ping. An event that was not delivered
-- yet is scheduled for immediate delivery instead.
-- returns 'missing' | 'gone': the log does not have the event | 'full': too many requested posts wait | 'requested',
--       even if the post already waits
-- requires: deliveries, keys, log_lookup, tasks, time

local r = load_record(keys)
local cursor = r and (scope == '*' or r.scope == scope) and load_delivery(keys, config_id)
if not cursor then return 'missing' end
if version > 0 and not has_event(keys, r, version, recorded_us) then return 'gone' end
if version > cursor.delivered then
  retry_delivery(keys, r, config_id, cursor, nonce)
  return 'requested'
end
local requested, count = redis.call('HGET', keys.cursors, config_id .. ':requested') or '', 0
for id in string.gmatch(requested, '%S+') do
  if id == post then return 'requested' end
  count = count + 1
end
if count >= MAX_REQUESTED_POSTS then return 'full' end
redis.call('HSET', keys.cursors, config_id .. ':requested', requested .. post .. ' ')
redis.call('ZADD', r.deliveries .. ':requested', 'NX', micros(now()), task_tag(keys) .. ' ' .. config_id)
redis.call('PUBLISH', r.deliveries .. ':notifications', '')
return 'requested'
