-- requires: deliveries, keys, options, stored_bytes, time

-- Return a cursor in the form for deliverers: task id, context, agent, quoted config id, sealed config, delivered
-- version, version of the log, failures, µs since the first failure, traceparent of the newest turn, current time in
-- µs, bytes of the largest entry of the log, bytes of the task, account. `r` is a result of leased_record, and `failing`
-- is the number of µs since the first failure.
local function describe_cursor(keys, r, config, cursor, failing)
  return {
    r.task_id, r.context, r.agent, config, cursor.sealed, micros(cursor.delivered), r.version, micros(cursor.failures),
    micros(failing), r.trace or trace_of(r.options or ''), micros(now()), r.largest or '0', r.size or '0', account_of(r.scope),
  }
end

-- Return a table with the fields of the record that describe_cursor reads, or nil if the task does not exist.
local function leased_record(keys)
  local names, r = {'task_id', 'context', 'agent', 'version', 'trace', 'largest', 'size', 'scope'}, {}
  local values = redis.call('HMGET', keys.record, unpack(names))
  if not values[1] then return nil end
  for i, name in ipairs(names) do r[name] = values[i] or nil end
  return setmetatable(r, {__index = function(_, field) return redis.call('HGET', keys.record, field) or nil end})
end

-- Lease up to `limit` due cursors of `list`. A cursor is due again when its lease ends. Return the result of
-- `describe(keys, r, config, cursor)` for each cursor. If a cursor does not exist, or if `describe` returns nil, the
-- cursor is removed from the list.
local function lease_deliveries(list, prefix, limit, lease_us, describe)
  local leased = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', list, '-inf', micros(now()), 'LIMIT', 0, limit)) do
    local task, config = string.match(name, '^(%S+) (%S+)$')
    local keys = keys_of(prefix, task)
    local r = leased_record(keys)
    local cursor = r and load_delivery(keys, config)
    local description = cursor and describe(keys, r, config, cursor)
    if description then
      redis.call('ZADD', list, micros(now() + lease_us), name)
      leased[#leased + 1] = description
    else
      redis.call('ZREM', list, name)
    end
  end
  return leased
end
