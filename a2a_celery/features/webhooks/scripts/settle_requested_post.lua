-- settle_requested_post: record the attempt of a requested post, or postpone the post.
-- returns the ids of the remaining posts, each followed by a space. No effect if the post is no longer requested, or if
--       the config was deleted or replaced, which also removes the requested posts.
-- requires: attempts, full_store, keys, tasks, time

local r = load_record(keys)
if not r or redis.call('HGET', keys.cursors, config_id .. ':sealed') ~= sealed then return '' end
local requested = redis.call('HGET', keys.cursors, config_id .. ':requested') or ''
if not string.find(' ' .. requested, ' ' .. post .. ' ', 1, true) then return requested end
allow_on_full_store(keys.record)
local name, left = task_tag(keys) .. ' ' .. config_id, {}
for id in string.gmatch(requested, '%S+') do
  if id ~= post or not attempt then left[#left + 1] = id .. ' ' end
end
record_attempt(keys, config_id, attempt)
requested = table.concat(left)
if #left > 0 then
  redis.call('HSET', keys.cursors, config_id .. ':requested', requested)
  redis.call('ZADD', r.deliveries .. ':requested', micros(now() + after_us), name)
else
  redis.call('HDEL', keys.cursors, config_id .. ':requested')
  redis.call('ZREM', r.deliveries .. ':requested', name)
end
return requested
