-- acquire_archivable: ended tasks that are due for the archive, the oldest first, for one archiver at a time.
-- KEYS  [1] archive  [2] archiver
-- ARGV  [1] key prefix  [2] at most this many  [3] who asks  [4] ms for which the others leave it to that one
-- returns {µs now, {task id, scope}, …} | {µs now, false}: another one archives. A task that is gone is forgotten
-- requires: full_store, keys, states, time
allow_on_full_store(KEYS[1]) -- archiving frees memory
local holder = redis.call('GET', KEYS[2])
local is_held = redis.call('PTTL', KEYS[2]) <= tonumber(ARGV[4]) -- more is left after the clock was set back
if holder and is_held and holder ~= ARGV[3] then return {micros(now()), false} end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
local taken = {micros(now())}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))) do
  local r = redis.call('HMGET', keys_of(ARGV[1], name)[1], 'task_id', 'scope', 'state')
  if r[1] and TERMINAL[tonumber(r[3])] then
    taken[#taken + 1] = {r[1], r[2]}
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return taken
