-- requires: buckets, deliveries, full_store, keys, states, stored_bytes, time

-- A script receives limits as JSON, or '' for no limits. A limit that is absent does not apply.
--   memory                              true if the memory of the server is nearly full, so that no message is accepted
--   concurrent, waiting, paused, queued maximum numbers of tasks; see TaskLimits in store/tasks/commands.py
--   owner_bytes, store_bytes            maximum stored bytes
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
    if redis.call('HGET', keys_of(prefix, name)[1], field) ~= value then gone = gone + redis.call('ZREM', list, name) end
  end
  return gone > 0
end

-- Count the interrupted tasks of the owner.
local function count_interrupted(limits)
  local count = 0
  for _, index in ipairs(limits.lists) do
    for state in pairs(INTERRUPTED) do count = count + redis.call('ZCARD', index .. state) end
  end
  return count
end

-- Return the name and the value of the first limit of stored bytes that another `bytes` bytes would exceed, or nil.
local function exceeded_bytes_limit(limits, account, bytes)
  if not limits.stored then return nil end
  subtract_expired(limits.stored)
  local sums = redis.call('HMGET', limits.stored, account, '*')
  if limits.owner_bytes and tonumber(sums[1] or 0) + bytes > limits.owner_bytes then return 'owner_bytes', limits.owner_bytes end
  if limits.store_bytes and tonumber(sums[2] or 0) + bytes > limits.store_bytes then return 'store_bytes', limits.store_bytes end
end

-- Return the name and the value of the first limit that is reached, or nil. See check_limits for `how`.
local function exceeded_limit(limits, how)
  if how == 'creates' and limits.paused and count_interrupted(limits) >= limits.paused then return 'paused', limits.paused end
  local waiting, open = 0, 0
  for _, index in ipairs(limits.lists) do
    local submitted = redis.call('ZCARD', index .. SUBMITTED)
    waiting, open = waiting + submitted, open + submitted + redis.call('ZCARD', index .. WORKING)
  end
  if open >= (limits.concurrent or math.huge) then return 'concurrent', limits.concurrent end
  if waiting >= (limits.waiting or math.huge) then return 'waiting', limits.waiting end
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

-- Check the limits for a message that adds `bytes`. `how` is 'creates' if the message creates a task, 'begins' if it
-- begins another run, or 'waits' if it waits until a run ends. Return {'limited', name, value, µs until a retry} if a
-- limit is exceeded. Otherwise, return nil, the key of the queue for the run (false for none), and true if the bytes of
-- a new task are counted. The cost does not depend on the number of tasks.
local function check_limits(keys, json, how, scope, bytes)
  if json == '' then return nil, false end
  local limits = cjson.decode(json)
  if limits.memory then return {'limited', 'memory', '0', micros(MEMORY_WAIT)} end
  refuse_on_full_store(keys[1]) -- because evict_stale may write before a command that needs memory
  local bound, max_bytes = exceeded_bytes_limit(limits, account_of(scope), bytes)
  if bound then return {'limited', bound, micros(max_bytes), micros(LONG_WAIT)} end
  if how == 'waits' then return nil, false end
  local name, maximum = exceeded_limit(limits, how)
  if name then
    local prefix, found = string.match(keys[1], '^(.*):{'), false
    for _, index in ipairs(limits.lists) do
      local states = {SUBMITTED, WORKING}
      for state in pairs(limits.paused and INTERRUPTED or {}) do states[#states + 1] = state end
      for _, state in ipairs(states) do
        found = evict_stale(prefix, index .. state, 'state', micros(state)) or found
      end
    end
    if limits.queue then found = evict_stale(prefix, limits.queue, 'phase', 'queued') or found end
    if found then name, maximum = exceeded_limit(limits, how) end
  end
  if not name then return nil, limits.queue or false, limits.stored ~= nil end
  if name == 'paused' then return {'limited', name, micros(maximum), micros(LONG_WAIT)} end
  return {'limited', name, micros(maximum), estimate_wait(limits, name == 'concurrent' and 'run' or 'queue', math.max(maximum, 1))}
end

-- Return {'limited', …} like check_limits if the config in the arguments of save_config is new and its owner has
-- reached the limit of webhooks, or nil.
local function exceeded_webhooks(keys, first)
  if ARGV[first] == '' or ARGV[first + 8] == '' or load_delivery(keys, ARGV[first]) then return nil end
  local maximum = tonumber(ARGV[first + 9])
  if redis.call('ZCOUNT', ARGV[first + 8], '(' .. micros(now()), '+inf') < maximum then return nil end
  return {'limited', 'webhooks', micros(maximum), micros(LONG_WAIT)}
end
