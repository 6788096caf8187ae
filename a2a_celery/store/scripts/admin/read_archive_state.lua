-- read_archive_state: return the backlog of the archive.
-- returns {'1' if ended tasks are archived, '1' if tasks that ended before archiving was enabled are archived too,
--       number of waiting tasks, number of due tasks, µs for which the oldest task has been due, number of refused
--       tasks}
-- requires: full_store, time

if give_up then
  allow_on_full_store(installation)
  redis.call('HSET', installation, 'archive', '', 'adopted', '')
end
local at = now()
local oldest = redis.call('ZRANGE', archive, 0, 0, 'WITHSCORES')[2]
local settings = redis.call('HMGET', installation, 'archive', 'adopted')
return {
  settings[1] or '', settings[2] or '', redis.call('ZCARD', archive), redis.call('ZCOUNT', archive, '-inf', micros(at)),
  micros(math.max(0, at - tonumber(oldest or at))), redis.call('ZCARD', archive_refused),
}
