-- settle_requested_post: record the attempt of a requested post, or postpone the post.
-- KEYS  keys of the task
-- ARGV  quoted config id, id of the post, JSON of the attempt ('' to postpone the post), µs until the remaining posts
--       are due
-- returns nil. No effect if the config does not exist or the post is no longer requested.
-- requires: attempts, full_store, keys, tasks, time
local record, push = KEYS[1], KEYS[9]
local config, post, attempt, after_us = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4])

local r = load_record(KEYS)
if not r then return end
local requested = redis.call('HGET', push, config .. ':requested')
if not requested or not string.find(' ' .. requested, ' ' .. post .. ' ', 1, true) then return end
allow_on_full_store(record)
local name, left = task_tag(KEYS) .. ' ' .. config, {}
for id in string.gmatch(requested, '%S+') do
  if id ~= post or attempt == '' then left[#left + 1] = id .. ' ' end
end
record_attempt(KEYS, config, attempt)
if #left > 0 then
  redis.call('HSET', push, config .. ':requested', table.concat(left))
  redis.call('ZADD', r.deliveries .. ':requested', micros(now() + after_us), name)
else
  redis.call('HDEL', push, config .. ':requested')
  redis.call('ZREM', r.deliveries .. ':requested', name)
end
