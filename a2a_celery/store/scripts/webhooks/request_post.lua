-- request_post: request the post of an event that was delivered before, or of a ping. An event that was not delivered
-- yet is scheduled for immediate delivery instead.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), quoted config id, id of the post, maximum number of requested posts, version of the event
--       ('0' for a ping), µs at which the event was recorded, nonce of the call
-- returns 'missing' | 'gone': the log does not have the event | 'full': too many requested posts wait | 'requested',
--       even if the post already waits
-- requires: deliveries, keys, log_lookup, tasks, time
local push = KEYS[9]
local scope, config, post, limit = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local version, recorded_us, nonce = tonumber(ARGV[5]), ARGV[6], ARGV[7]

local r = load_record(KEYS)
local cursor = r and (scope == '*' or r.scope == scope) and load_delivery(KEYS, config)
if not cursor then return 'missing' end
if version > 0 and not has_event(KEYS, r, version, recorded_us) then return 'gone' end
if version > cursor.delivered then
  retry_delivery(KEYS, r, config, cursor, nonce)
  return 'requested'
end
local requested, count = redis.call('HGET', push, config .. ':requested') or '', 0
for id in string.gmatch(requested, '%S+') do
  if id == post then return 'requested' end
  count = count + 1
end
if count >= limit then return 'full' end
redis.call('HSET', push, config .. ':requested', requested .. post .. ' ')
redis.call('ZADD', r.deliveries .. ':requested', 'NX', micros(now()), task_tag(KEYS) .. ' ' .. config)
redis.call('PUBLISH', r.deliveries .. ':notifications', '')
return 'requested'
