-- requires: keys, time

-- The size of a task is the sum of the bytes of its log, history, artifacts, activities, journal, signals, waiting messages and
-- data of its pause. If its record names an account (`quota_account`), its size also includes request, caller and options,
-- and the hash `stored` includes it in the sum of the account. The list `stored:expiring` has an entry
-- "<tag> <bytes> <account>" for each task that expires, so that the bytes of the task are subtracted after its keys have
-- expired.

local function stored_key(r) return deployment_key(r, 'stored') end

-- Return the account of a scope: "/<owner>", or "<tenant>/" for anonymous callers. See `Scope.account`.
local function account_of(scope)
  local tenant, owner = string.match(scope, '/([^/]*)/([^/]*)$')
  return owner == '' and tenant .. '/' or '/' .. owner
end

local function add_to_sums(stored, account, bytes)
  if redis.call('HINCRBY', stored, account, micros(bytes)) <= 0 then redis.call('HDEL', stored, account) end
end

-- Add bytes to the size of the task. The caller saves the record.
local function add_size(r, bytes)
  r.size, r.size_growth = (r.size or 0) + bytes, (r.size_growth or 0) + bytes
end

local function count_growth(r)
  if not r.quota_account or r.size_growth == 0 then return end
  add_to_sums(stored_key(r), r.quota_account, r.size_growth)
  r.size_growth = 0
end

-- Return the total bytes of request, caller and options.
local function size_of_request(keys)
  local size = 0
  for _, field in ipairs({'request', 'caller', 'options'}) do size = size + redis.call('HSTRLEN', keys.record, field) end
  return size
end

local function expiring_entry(keys, r) return task_tag(keys) .. ' ' .. micros(r.size) .. ' ' .. r.quota_account end

-- Subtract bytes from the size of an ended task, and save the size.
local function free_bytes(keys, r, bytes)
  local expiring, entry = stored_key(r) .. ':expiring', r.quota_account and expiring_entry(keys, r)
  local at = entry and redis.call('ZSCORE', expiring, entry)
  add_size(r, -bytes)
  count_growth(r)
  redis.call('HSET', keys.record, 'size', micros(r.size))
  if at then
    redis.call('ZREM', expiring, entry)
    redis.call('ZADD', expiring, at, expiring_entry(keys, r))
  end
end
