-- settle_requested_post: record the attempt of a requested post, or postpone the post.
-- KEYS  keys of the task
-- ARGV  quoted config id, sealed config, id of the post, JSON of the attempt ('' to postpone the post), µs until the
--       remaining posts are due
-- returns the ids of the remaining posts, each followed by a space. No effect if the post is no longer requested, or if
--       the config was deleted or replaced, which also removes the requested posts.
-- requires: attempts, full_store, keys, tasks, time
local record, push = KEYS[1], KEYS[9]
local config, sealed, post, attempt, after_us = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])

local r = load_record(KEYS)
if not r or redis.call('HGET', push, config .. ':sealed') ~= sealed then return '' end
local requested = redis.call('HGET', push, config .. ':requested') or ''
if not string.find(' ' .. requested, ' ' .. post .. ' ', 1, true) then return requested end
allow_on_full_store(record)
local name, left = task_tag(KEYS) .. ' ' .. config, {}
for id in string.gmatch(requested, '%S+') do
  if id ~= post or attempt == '' then left[#left + 1] = id .. ' ' end
end
record_attempt(KEYS, config, attempt)
requested = table.concat(left)
if #left > 0 then
  redis.call('HSET', push, config .. ':requested', requested)
  redis.call('ZADD', r.deliveries .. ':requested', micros(now() + after_us), name)
else
  redis.call('HDEL', push, config .. ':requested')
  redis.call('ZREM', r.deliveries .. ':requested', name)
end
return requested
