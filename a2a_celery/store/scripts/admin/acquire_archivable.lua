-- acquire_archivable: return ended tasks that are due for the archive, oldest first, to one archiver at a time.
-- KEYS  list of tasks for the archive, lease of the archiver
-- ARGV  key prefix, maximum number of tasks, id of the archiver, duration of the lease in ms
-- returns {current time in µs, {task id, scope}, …} | {current time in µs, false}: another archiver holds the lease.
--       Missing tasks are removed from the list.
-- requires: full_store, keys, states, time
local archive, lease = KEYS[1], KEYS[2]
local prefix, limit, archiver, lease_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

allow_on_full_store(archive) -- archiving frees memory
local holder = redis.call('GET', lease)
local is_held = redis.call('PTTL', lease) <= lease_ms -- false if the lease was written before the clock was set back
if holder and is_held and holder ~= archiver then return {micros(now()), false} end
redis.call('SET', lease, archiver, 'PX', lease_ms)
local reply = {micros(now())}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', archive, '-inf', micros(now()), 'LIMIT', 0, limit)) do
  local r = redis.call('HMGET', keys_of(prefix, tag)[1], 'task_id', 'scope', 'state')
  if r[1] and TERMINAL[tonumber(r[3])] then
    reply[#reply + 1] = {r[1], r[2]}
  else
    redis.call('ZREM', archive, tag)
  end
end
return reply
