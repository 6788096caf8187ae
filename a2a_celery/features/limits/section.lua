-- limits: refuse a message that exceeds a limit of its owner or of its agent. A section has the fields of TaskLimits in
-- section.py. The cost does not depend on the number of tasks.
-- requires: buckets, full_store, keys, limits, states, stored_bytes, time

-- Subtract the bytes of tasks whose keys have expired.
local function subtract_expired(stored)
  local list = stored .. ':expiring'
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', list, '-inf', micros(now()), 'LIMIT', 0, 1000)) do
    local bytes, account = string.match(entry, '^%S+ (%d+) (%S+)$')
    add_to_sums(stored, account, -bytes)
    redis.call('ZREM', list, entry)
  end
end

local STALE_CHECKS = 16

-- Remove stale members from a list, for example members whose keys were evicted. A member is stale if `field` of the
-- task's record is not `value`. Only the oldest members are checked. Return true if a member was removed.
local function evict_stale(prefix, list, field, value)
  local gone = 0
  for _, name in ipairs(redis.call('ZRANGE', list, 0, STALE_CHECKS - 1)) do
    if redis.call('HGET', keys_of(prefix, name).record, field) ~= value then gone = gone + redis.call('ZREM', list, name) end
  end
  return gone > 0
end

-- Return true if another `bytes` bytes would exceed the limit of stored bytes.
local function exceeds_bytes(limits, r, bytes)
  local stored = stored_key(r)
  subtract_expired(stored)
  return tonumber(redis.call('HGET', stored, account_of(r.scope)) or 0) + bytes > limits.owner_bytes
end

-- Return the name and the value of the first limit of tasks that is reached, or nil.
local function exceeded_limit(limits)
  local open = 0
  for _, index in ipairs(limits.indexes) do
    open = open + redis.call('ZCARD', index .. SUBMITTED) + redis.call('ZCARD', index .. WORKING)
  end
  if open >= (limits.concurrent or math.huge) then return 'concurrent', limits.concurrent end
  if limits.queued and redis.call('ZCARD', limits.queue) >= limits.queued then return 'queued', limits.queued end
end

-- Estimate the µs until one of `places` is free, from the mean of the observed durations. Return '0' without
-- observations.
local function estimate_wait(r, what, places)
  local agent, times = string.match(r.scope, '^[^/]+'), 0
  local fields = {what .. ' ' .. agent .. ' sum'}
  for i = 1, #BOUNDS + 1 do fields[i + 1] = what .. ' ' .. agent .. ' ' .. i end
  local counted = redis.call('HMGET', deployment_key(r, 'metrics'), unpack(fields))
  for i = 2, #counted do times = times + tonumber(counted[i] or 0) end
  return times > 0 and micros(tonumber(counted[1] or 0) / times / places) or '0'
end

-- Return {'limited', name, value, µs until a retry} if a limit is exceeded. Otherwise, set the list of queued runs and
-- the account of the task `r`.
local function admit(limits, keys, r, bytes, begins_run)
  refuse_on_full_store(keys.record) -- because evict_stale may write before a command that needs memory
  if limits.owner_bytes and exceeds_bytes(limits, r, bytes) then
    return {'limited', 'owner_bytes', micros(limits.owner_bytes), micros(LONG_WAIT)}
  end
  if not begins_run then return nil end
  local name, maximum = exceeded_limit(limits)
  if name then
    local prefix, found = prefix_of(keys), false
    for _, index in ipairs(limits.indexes) do
      for _, state in ipairs({SUBMITTED, WORKING}) do
        found = evict_stale(prefix, index .. state, 'state', micros(state)) or found
      end
    end
    if limits.queued then found = evict_stale(prefix, limits.queue, 'phase', 'queued') or found end
    if found then name, maximum = exceeded_limit(limits) end
  end
  if name then
    return {'limited', name, micros(maximum), estimate_wait(r, name == 'concurrent' and 'run' or 'queue', math.max(maximum, 1))}
  end
  if limits.queued then r.queue = limits.queue end
  if limits.owner_bytes and not r.version then r.quota_account = account_of(r.scope) end
end
