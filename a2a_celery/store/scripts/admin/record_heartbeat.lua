-- record_heartbeat: record the heartbeat of a watcher or a worker, and return the announcements of all processes with a
-- recent heartbeat. If the store has no schema, it has lost all its data, and the heartbeat restores the schema and the
-- archive cutoff: every task in the archive ended before.
-- returns the valid announcements
-- requires: time

local at = now()
redis.call('ZREMRANGEBYSCORE', processes, '-inf', micros(at - ttl_us))
redis.call('ZREMRANGEBYSCORE', processes, '(' .. micros(at), '+inf') -- heartbeats that were recorded before the clock was set back
if withdraws then
  redis.call('ZREM', processes, announcement)
elseif announcement ~= '' then
  redis.call('ZADD', processes, micros(at), announcement)
  if redis.call('HSETNX', installation, 'schema', schema) == 1 then
    redis.call('HSETNX', installation, 'border', micros(at))
  end
  if archives then redis.call('HSETNX', installation, 'archive', '1') end
  redis.call('PEXPIRE', processes, math.ceil(ttl_us / 1000))
end
local announcements = redis.call('ZRANGE', processes, 0, -1)
table.sort(announcements)
return announcements
