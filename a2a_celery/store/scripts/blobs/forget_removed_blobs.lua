-- forget_removed_blobs: folders of tasks that are gone are removed.
-- KEYS  [1] doomed blobs
-- ARGV  their tags
-- returns nothing
for _, name in ipairs(ARGV) do redis.call('ZREM', KEYS[1], name) end

