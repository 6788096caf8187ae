-- requires: buckets, deliveries, full_store, keys, states, stored_bytes, time

-- A script receives limits as JSON, '' for none. A limit that is left out does not apply.
--   memory                              true if the memory of the server is nearly full: no message is accepted
--   concurrent, waiting, paused, queued numbers of tasks
--   owner_bytes, store_bytes            bytes that may be stored
--   stored                              key of the sums of stored bytes
--   lists                               prefixes of the indexes of the owner's tasks
--   queue                               key of the list of the agent's waiting runs
--   metrics, agent                      key of the metrics, and the name of the agent, quoted

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

-- Remove stale members from a list, for example members whose keys were evicted. Only the oldest members are checked.
-- Return true if a member was removed.
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

-- Return the name and the value of the first limit of stored bytes that `bytes` additional bytes would exceed, or nil.
local function exceeded_bytes_limit(limits, account, bytes)
  if not limits.stored then return nil end
  subtract_expired(limits.stored)
  local sums = redis.call('HMGET', limits.stored, account, '*')
  if limits.owner_bytes and tonumber(sums[1] or 0) + bytes > limits.owner_bytes then return 'owner_bytes', limits.owner_bytes end
  if limits.store_bytes and tonumber(sums[2] or 0) + bytes > limits.store_bytes then return 'store_bytes', limits.store_bytes end
end

-- Return the name and the value of the first limit that is reached, or nil. `how` is as in check_limits.
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

-- Estimate the µs until one of `places` is free, from the mean of the observed times; '0' without observations.
local function estimate_wait(limits, what, places)
  local fields, times = {what .. ' ' .. limits.agent .. ' sum'}, 0
  for i = 1, #BOUNDS + 1 do fields[i + 1] = what .. ' ' .. limits.agent .. ' ' .. i end
  local counted = redis.call('HMGET', limits.metrics, unpack(fields))
  for i = 2, #counted do times = times + tonumber(counted[i] or 0) end
  return times > 0 and micros(tonumber(counted[1] or 0) / times / places) or '0'
end

-- µs until a client retries a message that was refused because the memory is nearly full.
local MEMORY_WAIT = 30000000

-- µs until a client retries a message that was refused for a limit that no run frees.
local LONG_WAIT = 60000000

-- Check the limits for a message that 'creates' a task, 'begins' another run or 'waits' for the end of a run (`how`)
-- and adds `bytes`. Return {'limited', name, value, µs until a retry} if a limit is exceeded. Otherwise return nil, the
-- key of the queue that the run enters (false for none) and true if the bytes of a new task are counted. The cost does
-- not depend on the number of tasks.
local function check_limits(keys, json, how, scope, bytes)
  if json == '' then return nil, false end
  local limits = cjson.decode(json)
  if limits.memory then return {'limited', 'memory', '0', micros(MEMORY_WAIT)} end
  refuse_on_full_store(keys[1]) -- evict_stale may write before a command needs memory
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

-- Return {'limited', …} as check_limits does if a config of save_config is new and its owner has reached the limit,
-- or nil.
local function exceeded_webhooks(keys, first)
  if ARGV[first] == '' or ARGV[first + 8] == '' or load_delivery(keys, ARGV[first]) then return nil end
  local maximum = tonumber(ARGV[first + 9])
  if redis.call('ZCOUNT', ARGV[first + 8], '(' .. micros(now()), '+inf') < maximum then return nil end
  return {'limited', 'webhooks', micros(maximum), micros(LONG_WAIT)}
end
