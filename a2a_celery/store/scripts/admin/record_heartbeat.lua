-- record_heartbeat: record the heartbeat of a watcher or a worker, and return the announcements of all processes with a
-- recent heartbeat. If the store has no schema, it has lost all its data, and the heartbeat restores the schema and the
-- archive cutoff: every task in the archive ended before.
-- KEYS  list of watchers or of workers, installation
-- ARGV  announcement of the process ('' to only read), µs for which the announcement is valid, schema of the process's
--       release, '1' if the process archives ended tasks, '1' to withdraw the announcement
-- returns the valid announcements
-- requires: time
local processes, installation = KEYS[1], KEYS[2]
local announcement, ttl_us, schema, archives, withdraws = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4] == '1', ARGV[5] == '1'

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
