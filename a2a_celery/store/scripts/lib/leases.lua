-- requires: deliveries, keys, options, stored_bytes, time

-- Return a leased cursor as a deliverer receives it, see store/webhooks/deliveries.py. `r` has the fields of
-- leased_record.
local function leased_row(keys, r, config, line)
  local failing = line.first_failed_at and now() - line.first_failed_at or 0
  return {
    r.task_id, r.context, r.agent, config, line.sealed, micros(line.delivered), r.version, micros(line.failures),
    micros(failing), r.trace or trace_of(r.options or ''), micros(now()), r.largest or '0', r.size or '0', account_of(r.scope),
  }
end

-- Return the fields of the record that leased_row reads, or nil if the task does not exist.
local function leased_record(keys)
  local names, r = {'task_id', 'context', 'agent', 'version', 'trace', 'largest', 'size', 'scope'}, {}
  local values = redis.call('HMGET', keys[1], unpack(names))
  if not values[1] then return nil end
  for i, name in ipairs(names) do r[name] = values[i] or nil end
  return setmetatable(r, {__index = function(_, field) return redis.call('HGET', keys[1], field) or nil end})
end

-- Lease up to `limit` due cursors of `list`, each as `row(keys, r, config, line)` returns it; a cursor is due again
-- after its lease. Cursors without a row, and those of missing configs, leave the list.
local function lease_deliveries(list, prefix, limit, lease, row)
  local leased = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', list, '-inf', micros(now()), 'LIMIT', 0, tonumber(limit))) do
    local task, config = string.match(name, '^(%S+) (%S+)$')
    local keys = keys_of(prefix, task)
    local r = leased_record(keys)
    local line = r and load_delivery(keys, config)
    local found = line and row(keys, r, config, line)
    if found then
      redis.call('ZADD', list, micros(now() + tonumber(lease)), name)
      leased[#leased + 1] = found
    else
      redis.call('ZREM', list, name)
    end
  end
  return leased
end
