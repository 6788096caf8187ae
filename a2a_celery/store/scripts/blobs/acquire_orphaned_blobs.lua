-- acquire_orphaned_blobs: find tasks with blobs that no longer exist, and return the folders to remove to one watcher.
-- No task with the same tag can register blobs until the folder is removed.
-- KEYS  tasks with blobs, orphaned blobs
-- ARGV  key prefix, maximum number of folders, maximum number of tasks to check, µs until a live task is checked again,
--       µs until an acquired folder that was not reported as removed is returned again
-- returns members of the orphaned blobs: "<tag>" for the folder of a task, "<tag>/<folder>" for the folder of a journal
-- requires: full_store, keys, time
local blobs, orphaned = KEYS[1], KEYS[2]
local prefix, limit, checks, recheck_us, retry_us = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])

allow_on_full_store(blobs)
local at = now()
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', blobs, '-inf', micros(at), 'LIMIT', 0, checks)) do
  local ttl_ms = redis.call('PTTL', keys_of(prefix, tag)[1])
  if ttl_ms == -2 then
    redis.call('ZREM', blobs, tag)
    redis.call('ZADD', orphaned, micros(at), tag)
  else
    redis.call('ZADD', blobs, micros(at + (ttl_ms < 0 and recheck_us or ttl_ms * 1000 + 1000)), tag)
  end
end
local due = redis.call('ZRANGEBYSCORE', orphaned, '-inf', micros(at), 'LIMIT', 0, limit)
for _, tag in ipairs(due) do redis.call('ZADD', orphaned, micros(at + retry_us), tag) end
return due
