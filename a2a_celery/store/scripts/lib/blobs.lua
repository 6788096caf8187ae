-- requires: keys, time

local function blobs_key(leases) return (string.gsub(leases, 'leases$', 'blobs')) end

-- Return true if `bytes`, an event or journal entry of a new task, refers to blobs that may have been removed. See
-- store/blobs.
local function lacks_blobs(keys, leases, bytes)
  return string.byte(bytes) == 0 and redis.call('EXISTS', keys[1]) == 0 and
    not redis.call('ZSCORE', blobs_key(leases), task_tag(keys))
end

-- Return the blob folder of a journal entry whose content is a blob, or nil for any other entry.
local function blob_folder(entry) return string.match(entry, '^%z....%[%[0,"([^/]+)/') end

-- Make a watcher remove the blobs of a deleted journal.
local function remove_journal_blobs(keys, leases, folder)
  redis.call('ZADD', blobs_key(leases) .. ':orphaned', micros(now()), task_tag(keys) .. '/' .. folder)
end
