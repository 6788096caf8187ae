-- read_log: the entries after a version, in order.
-- KEYS  a task's ten
-- ARGV  [1] after this version  [2] at most this many  [3] µs at which the entry of that version was recorded, '' for unknown
-- gives {version, state, phase, entries, '1' if the log does not have that entry any more: then without entries};
--       {'0', '0', '', {}, '0'} when there is no such task
local r = redis.call('HMGET', KEYS[1], 'version', 'state', 'phase')
if not r[1] then return {'0', '0', '', {}, '0'} end
local after = tonumber(ARGV[1])
local restored = after > tonumber(r[1]) or
  ARGV[3] ~= '' and string.match(redis.call('LINDEX', KEYS[2], after - 1), '^%d+') ~= ARGV[3]
if restored then return {r[1], r[2], r[3], {}, '1'} end
return {r[1], r[2], r[3], redis.call('LRANGE', KEYS[2], after, after + tonumber(ARGV[2]) - 1), '0'}
