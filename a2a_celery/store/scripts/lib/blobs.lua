-- requires: keys

local function blobs_key(leases) return (string.gsub(leases, 'leases$', 'blobs')) end

-- Return true if a new task refers to blobs that may have been removed. `bytes` is its first event, see store/blobs.
local function lacks_blobs(keys, leases, bytes)
  return string.byte(bytes) == 0 and redis.call('EXISTS', keys[1]) == 0 and
    not redis.call('ZSCORE', blobs_key(leases), task_tag(keys))
end
