-- blobs_in_use: count the tasks with blobs, plus the folders to remove.
-- KEYS  tasks with blobs, orphaned blobs
-- ARGV  none
-- returns the number
local blobs, orphaned = KEYS[1], KEYS[2]

return redis.call('ZCARD', blobs) + redis.call('ZCARD', orphaned)
