-- record_heartbeat: a watcher, or a worker, says that it is there, or somebody asks which are; changes no task.
-- A store that has lost what it said of itself has lost all else too, and is told again.
-- KEYS  [1] watchers, or workers  [2] installation
-- ARGV  [1] what the watcher says of itself, '' to only ask  [2] µs for which that is believed
--       [3] the schema that it found when it began  [4] '1' if it archives
-- returns what each watcher said that was heard of in that time
-- requires: time
local t = now()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', micros(t - tonumber(ARGV[2])))
redis.call('ZREMRANGEBYSCORE', KEYS[1], '(' .. micros(t), '+inf') -- said before the clock was set back
if ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[1], micros(t), ARGV[1])
  redis.call('HSETNX', KEYS[2], 'schema', ARGV[3])
  if ARGV[4] == '1' then redis.call('HSETNX', KEYS[2], 'archive', '1') end
  redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[2]) / 1000))
end
local said = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(said)
return said
