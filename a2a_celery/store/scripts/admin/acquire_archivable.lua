-- acquire_archivable: return ended tasks that are due for the archive, oldest first, to one archiver at a time.
-- returns {current time in µs, {task id, scope}, …} | {current time in µs, false}: another archiver holds the lease.
--       Missing tasks are removed from the list.
-- requires: full_store, keys, states, time

allow_on_full_store(archive) -- archiving frees memory
local holder = redis.call('GET', archiver)
local is_held = redis.call('PTTL', archiver) <= lease_ms -- false if the lease was written before the clock was set back
if holder and is_held and holder ~= archiver_id then return {micros(now()), false} end
redis.call('SET', archiver, archiver_id, 'PX', lease_ms)
local reply = {micros(now())}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', archive, '-inf', micros(now()), 'LIMIT', 0, limit)) do
  local r = redis.call('HMGET', keys_of(prefix, tag).record, 'task_id', 'scope', 'state')
  if r[1] and TERMINAL[tonumber(r[3])] then
    reply[#reply + 1] = {r[1], r[2]}
  else
    redis.call('ZREM', archive, tag)
  end
end
return reply
