-- acquire_orphaned_blobs: looks at tasks with blobs; those that are gone are doomed, and can't begin any more.
-- KEYS  [1] blobs  [2] doomed blobs
-- ARGV  [1] key prefix  [2] at most this many  [3] µs until a live task is looked at again
--       [4] µs until a folder that was given out, and is not said to be removed, is given out again
-- returns tags of tasks whose folders are to be removed
-- requires: full_store, keys, time
allow_on_full_store(KEYS[1])
local t = now()
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(t), 'LIMIT', 0, ARGV[2])) do
  local left = redis.call('PTTL', keys_of(ARGV[1], name)[1])
  if left == -2 then
    redis.call('ZREM', KEYS[1], name)
    redis.call('ZADD', KEYS[2], micros(t), name)
  else
    redis.call('ZADD', KEYS[1], micros(t + (left < 0 and tonumber(ARGV[3]) or left * 1000 + 1000)), name)
  end
end
local due = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', micros(t), 'LIMIT', 0, ARGV[2])
for _, name in ipairs(due) do redis.call('ZADD', KEYS[2], micros(t + tonumber(ARGV[4])), name) end
return due
