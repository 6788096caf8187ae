-- requires: buckets, full_store, keys, states, stored_bytes, time

-- A script receives limits as JSON, or '' for no limits. A limit that is absent does not apply.
--   memory                              true if the memory of the server is nearly full, so that no message is accepted
--   concurrent, queued                  maximum numbers of tasks; see TaskLimits in store/tasks/commands.py
--   owner_bytes                         maximum stored bytes of the owner's tasks
--   stored                              key of the sums of stored bytes
--   lists                               prefixes of the indexes of the owner's tasks
--   queue                               key of the list of the agent's queued runs
--   metrics, agent                      key of the metrics, and the quoted name of the agent

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
local function exceeds_bytes(limits, account, bytes)
  if not limits.stored then return false end
  subtract_expired(limits.stored)
  return tonumber(redis.call('HGET', limits.stored, account) or 0) + bytes > limits.owner_bytes
end

-- Return the name and the value of the first limit of tasks that is reached, or nil.
local function exceeded_limit(limits)
  local open = 0
  for _, index in ipairs(limits.lists) do
    open = open + redis.call('ZCARD', index .. SUBMITTED) + redis.call('ZCARD', index .. WORKING)
  end
  if open >= (limits.concurrent or math.huge) then return 'concurrent', limits.concurrent end
  if limits.queued and redis.call('ZCARD', limits.queue) >= limits.queued then return 'queued', limits.queued end
end

-- Estimate the µs until one of `places` is free, from the mean of the observed durations. Return '0' without
-- observations.
local function estimate_wait(limits, what, places)
  local fields, times = {what .. ' ' .. limits.agent .. ' sum'}, 0
  for i = 1, #BOUNDS + 1 do fields[i + 1] = what .. ' ' .. limits.agent .. ' ' .. i end
  local counted = redis.call('HMGET', limits.metrics, unpack(fields))
  for i = 2, #counted do times = times + tonumber(counted[i] or 0) end
  return times > 0 and micros(tonumber(counted[1] or 0) / times / places) or '0'
end

-- µs after which a client should retry a message that was refused because the memory is nearly full.
local MEMORY_WAIT = 30000000

-- µs after which a client should retry a message that was refused because of a limit that the end of a run does not
-- change.
local LONG_WAIT = 60000000

-- Check the limits for a message that adds `bytes`. `how` is 'begins' if the message begins a run, or 'waits' if it
-- waits until a run ends. Return {'limited', name, value, µs until a retry} if a
-- limit is exceeded. Otherwise, return nil, the key of the queue for the run (false for none), and true if the bytes of
-- a new task are counted. The cost does not depend on the number of tasks.
local function check_limits(keys, json, how, scope, bytes)
  if json == '' then return nil, false end
  local limits = cjson.decode(json)
  if limits.memory then return {'limited', 'memory', '0', micros(MEMORY_WAIT)} end
  refuse_on_full_store(keys.record) -- because evict_stale may write before a command that needs memory
  if exceeds_bytes(limits, account_of(scope), bytes) then
    return {'limited', 'owner_bytes', micros(limits.owner_bytes), micros(LONG_WAIT)}
  end
  if how == 'waits' then return nil, false end
  local name, maximum = exceeded_limit(limits)
  if name then
    local prefix, found = string.match(keys.record, '^(.*):{'), false
    for _, index in ipairs(limits.lists) do
      for _, state in ipairs({SUBMITTED, WORKING}) do
        found = evict_stale(prefix, index .. state, 'state', micros(state)) or found
      end
    end
    if limits.queue then found = evict_stale(prefix, limits.queue, 'phase', 'queued') or found end
    if found then name, maximum = exceeded_limit(limits) end
  end
  if not name then return nil, limits.queue or false, limits.stored ~= nil end
  return {'limited', name, micros(maximum), estimate_wait(limits, name == 'concurrent' and 'run' or 'queue', math.max(maximum, 1))}
end
