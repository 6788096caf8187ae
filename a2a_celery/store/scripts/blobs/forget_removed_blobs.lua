-- forget_removed_blobs: record that folders were removed.
-- KEYS  orphaned blobs
-- ARGV  members of the orphaned blobs
-- returns nil
local orphaned = KEYS[1]

for _, tag in ipairs(ARGV) do redis.call('ZREM', orphaned, tag) end
