-- requires: keys, states, time

local NEWEST_SCOPES = 10000

-- Return true if ended tasks are archived. With an archive, an ended task does not expire before it is archived; see
-- remove_archived.
local function is_archiving(keys, r)
  if rawget(r, 'archiving') == nil then
    r.archiving = redis.call('HGET', prefix_of(keys) .. ':installation', 'archive') == '1'
  end
  return r.archiving
end

-- Return the index of the live tasks of an owner in all tenants, or nil for a task that is not in such an index.
local function owner_index_of(r, state)
  local tenant, owner = string.match(r.scope, '/([^/]*)/([^/]*)$')
  if tenant == '' or owner == '' or TERMINAL[state] then return nil end
  return string.sub(r.scope_index, 1, -#('tasks:' .. r.scope .. ':') - 1) .. 'owner:' .. owner .. ':'
end

-- Return the prefixes of the indexes of a task in `state`: the indexes of its scope and of its context, and the indexes
-- that it has joined. A live task of an authenticated owner in a tenant is also in an index of the owner in all tenants,
-- in which sections count the owner's tasks.
local function indexes_of(r, state)
  local indexes = {r.scope_index, r.context_index}
  indexes[#indexes + 1] = owner_index_of(r, state)
  if r.joined_indexes then
    for index in string.gmatch(r.joined_indexes, '%S+') do indexes[#indexes + 1] = index end
  end
  return indexes
end

-- Record the time of a scope's newest status, for lists of the tasks of all owners.
local function record_scope(r, at)
  local scopes = string.sub(r.scope_index, 1, -#('tasks:' .. r.scope .. ':') - 1) .. 'scopes'
  if redis.call('ZADD', scopes, 'GT', micros(at), r.scope) == 1 then
    redis.call('ZREMRANGEBYRANK', scopes, 0, -NEWEST_SCOPES - 1)
  end
end

local function add_to_indexes(keys, r, state, at)
  record_scope(r, at)
  for _, index in ipairs(indexes_of(r, state)) do
    redis.call('ZADD', index .. state, micros(at), task_tag(keys))
    if TERMINAL[state] and is_archiving(keys, r) then
      redis.call('PERSIST', index .. state)
    elseif TERMINAL[state] then
      redis.call('ZREMRANGEBYSCORE', index .. state, '-inf', micros(at - tonumber(r.retention) * 1000000))
      redis.call('EXPIRE', index .. state, r.retention)
    end
  end
end

-- Add a live task to a further index with the prefix `index`. A section calls this function after the writes of a script.
local function join_index(keys, index)
  local joined, state, at = unpack(redis.call('HMGET', keys.record, 'joined_indexes', 'state', 'at'))
  if joined and string.find(' ' .. joined .. ' ', ' ' .. index .. ' ', 1, true) then return end
  redis.call('HSET', keys.record, 'joined_indexes', joined and joined .. ' ' .. index or index)
  redis.call('ZADD', index .. state, at, task_tag(keys))
end

local function remove_from_indexes(keys, r, state)
  for _, index in ipairs(indexes_of(r, state)) do
    redis.call('ZREM', index .. state, task_tag(keys))
  end
end
