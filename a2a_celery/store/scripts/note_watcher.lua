-- note_watcher: a watcher says that it is there, or somebody asks which are; changes no task
-- KEYS  [1] watchers
-- ARGV  [1] what the watcher says of itself, '' to only ask  [2] µs for which that is believed
-- gives what each watcher said that was heard of in that time
local t = now()
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', micros(t - tonumber(ARGV[2])))
if ARGV[1] ~= '' then
  redis.call('ZADD', KEYS[1], micros(t), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], math.ceil(tonumber(ARGV[2]) / 1000))
end
local said = redis.call('ZRANGE', KEYS[1], 0, -1)
table.sort(said)
return said
