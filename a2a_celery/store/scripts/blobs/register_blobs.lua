-- register_blobs: register a task with blobs, before its first blob is written.
-- KEYS  tasks with blobs, orphaned blobs
-- ARGV  tag of the task, µs after which the task must exist
-- returns 'new' | 'known' | 'removing': the folder of an earlier task with the same tag is being removed
-- requires: time
local blobs, orphaned = KEYS[1], KEYS[2]
local tag, grace_us = ARGV[1], tonumber(ARGV[2])

if redis.call('ZSCORE', orphaned, tag) then return 'removing' end
return redis.call('ZADD', blobs, 'NX', micros(now() + grace_us), tag) == 1 and 'new' or 'known'
