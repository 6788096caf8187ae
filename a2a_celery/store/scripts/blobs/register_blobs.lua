-- register_blobs: register a task with blobs, before its first blob is written.
-- returns 'registered' | 'removing': the folder of an earlier task with the same tag is being removed
-- requires: time

if redis.call('ZSCORE', orphaned_blobs, tag) then return 'removing' end
redis.call('ZADD', blobs, 'NX', micros(now() + ORPHAN_AFTER_US), tag)
return 'registered'
