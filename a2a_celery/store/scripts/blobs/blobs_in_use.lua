-- blobs_in_use: return the number of tasks with blobs, plus the number of folders to remove.
-- returns the sum

return redis.call('ZCARD', blobs) + redis.call('ZCARD', orphaned_blobs)
