-- forget_removed_blobs: record that the folders of tasks were removed.
-- KEYS  orphaned blobs
-- ARGV  tags of the tasks
-- returns nil
local orphaned = KEYS[1]

for _, tag in ipairs(ARGV) do redis.call('ZREM', orphaned, tag) end
