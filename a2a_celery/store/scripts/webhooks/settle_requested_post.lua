-- settle_requested_post: a requested post was made, or has to wait.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] id of the post  [3] JSON of the attempt, '' if it was not made: it waits on
--       [4] µs until the line is due, if posts wait
-- returns nothing; without effect when the config is gone, or the post was made already
-- requires: attempts, full_store, keys, tasks, time
local r = load_record(KEYS)
if not r then return end
local waiting = redis.call('HGET', KEYS[9], ARGV[1] .. ':requested')
if not waiting or not string.find(' ' .. waiting, ' ' .. ARGV[2] .. ' ', 1, true) then return end
allow_on_full_store(KEYS[1])
local name, left = task_tag(KEYS) .. ' ' .. ARGV[1], {}
for id in string.gmatch(waiting, '%S+') do
  if id ~= ARGV[2] or ARGV[3] == '' then left[#left + 1] = id .. ' ' end
end
record_attempt(KEYS, ARGV[1], ARGV[3])
if #left > 0 then
  redis.call('HSET', KEYS[9], ARGV[1] .. ':requested', table.concat(left))
  redis.call('ZADD', r.deliveries .. ':requested', micros(now() + tonumber(ARGV[4])), name)
else
  redis.call('HDEL', KEYS[9], ARGV[1] .. ':requested')
  redis.call('ZREM', r.deliveries .. ':requested', name)
end
