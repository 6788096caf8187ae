-- acquire_orphaned_blobs: find tasks with blobs that no longer exist, and return the folders to remove to one watcher.
-- No task with the same tag can register blobs until the folder is removed.
-- returns members of the orphaned blobs: "<tag>" for the folder of a task, "<tag>/<folder>" for the folder of a journal
-- requires: full_store, keys, time

allow_on_full_store(blobs)
local at = now()
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', blobs, '-inf', micros(at), 'LIMIT', 0, CHECKS)) do
  local ttl_ms = redis.call('PTTL', keys_of(prefix, tag).record)
  if ttl_ms == -2 then
    redis.call('ZREM', blobs, tag)
    redis.call('ZADD', orphaned_blobs, micros(at), tag)
  else
    redis.call('ZADD', blobs, micros(at + (ttl_ms < 0 and RECHECK_AFTER_US or ttl_ms * 1000 + 1000)), tag)
  end
end
local due = redis.call('ZRANGEBYSCORE', orphaned_blobs, '-inf', micros(at), 'LIMIT', 0, limit)
for _, tag in ipairs(due) do redis.call('ZADD', orphaned_blobs, micros(at + REMOVE_FOR_US), tag) end
return due
