-- blobs_in_use: return the number of tasks with blobs, plus the number of folders to remove.
-- KEYS  tasks with blobs, orphaned blobs
-- ARGV  none
-- returns the sum
local blobs, orphaned = KEYS[1], KEYS[2]

return redis.call('ZCARD', blobs) + redis.call('ZCARD', orphaned)
