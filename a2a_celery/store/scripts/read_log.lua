-- read_log: the entries after a version, in order.
-- KEYS  a task's ten
-- ARGV  [1] after this version  [2] at most this many
-- gives {version, state, phase, entries}; {'0', '0', '', {}} when there is no such task
local r = redis.call('HMGET', KEYS[1], 'version', 'state', 'phase')
if not r[1] then return {'0', '0', '', {}} end
local after = tonumber(ARGV[1])
return {r[1], r[2], r[3], redis.call('LRANGE', KEYS[2], after, after + tonumber(ARGV[2]) - 1)}
