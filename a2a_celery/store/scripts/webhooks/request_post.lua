-- request_post: the owner of a config requests a post: of an event that was delivered before, or a ping. An event that is owed to
-- the line is due at once instead.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2] config id, quoted  [3] id of the post  [4] how many may wait
--       [5] version of the event, '0' for a ping  [6] µs at which it was recorded  [7] nonce, for repeated calls
-- returns 'missing' | 'gone': the log has not that event | 'full': too many wait | 'requested', also when it waits already
-- requires: deliveries, keys, log_lookup, tasks, time
local r = load_record(KEYS)
local line = r and (ARGV[1] == '*' or r.scope == ARGV[1]) and load_delivery(KEYS, ARGV[2])
if not line then return 'missing' end
local version = tonumber(ARGV[5])
if version > 0 and not has_event(KEYS, version, ARGV[6]) then return 'gone' end
if version > line.delivered then
  retry_delivery(KEYS, r, ARGV[2], line, ARGV[7])
  return 'requested'
end
local waiting, count_waiting = redis.call('HGET', KEYS[9], ARGV[2] .. ':requested') or '', 0
for id in string.gmatch(waiting, '%S+') do
  if id == ARGV[3] then return 'requested' end
  count_waiting = count_waiting + 1
end
if count_waiting >= tonumber(ARGV[4]) then return 'full' end
redis.call('HSET', KEYS[9], ARGV[2] .. ':requested', waiting .. ARGV[3] .. ' ')
redis.call('ZADD', r.deliveries .. ':requested', 'NX', micros(now()), task_tag(KEYS) .. ' ' .. ARGV[2])
redis.call('PUBLISH', r.deliveries .. ':notifications', '')
return 'requested'
