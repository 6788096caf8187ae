-- forget_removed_blobs: record that folders were removed.
-- returns nil

for _, tag in ipairs(tags) do redis.call('ZREM', orphaned_blobs, tag) end
