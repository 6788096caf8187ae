-- read_archive_state: how far the archive is behind.
-- KEYS  [1] installation  [2] archive  [3] archive refused
-- ARGV  [1] '': from now on ended tasks don't go to an archive; '-' to only ask
-- returns {'1' if ended tasks go to an archive, '1' if those that ended before do, tasks that wait, those that are due, µs
--       for which the oldest is, tasks that the archive refused}
-- requires: full_store, time
if ARGV[1] == '' then
  allow_on_full_store(KEYS[1])
  redis.call('HSET', KEYS[1], 'archive', '', 'adopted', '')
end
local t = now()
local oldest = redis.call('ZRANGE', KEYS[2], 0, 0, 'WITHSCORES')[2]
local how = redis.call('HMGET', KEYS[1], 'archive', 'adopted')
return {
  how[1] or '', how[2] or '', redis.call('ZCARD', KEYS[2]), redis.call('ZCOUNT', KEYS[2], '-inf', micros(t)),
  micros(math.max(0, t - tonumber(oldest or t))), redis.call('ZCARD', KEYS[3]),
}
