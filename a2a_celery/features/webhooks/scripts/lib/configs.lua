-- requires: attempts, cursors, deliveries, expiry, keys, limits, time

local function remove_config(keys, r, config, cursor)
  local name = task_tag(keys) .. ' ' .. config
  for _, list in ipairs({r.deliveries, r.deliveries .. ':requested', r.dead_deliveries, cursor.secret, cursor.listed}) do
    redis.call('ZREM', list, name)
  end
  for _, list in ipairs({r.dead_deliveries, cursor.secret, cursor.listed}) do prune_expired(list) end
  for _, field in ipairs(DELIVERY_FIELDS) do redis.call('HDEL', keys.cursors, config .. ':' .. field) end
  remove_attempts(keys, config)
  set_delivery_enabled(keys, r, config, false)
  if redis.call('EXISTS', keys.cursors) == 0 then
    redis.call('HDEL', keys.record, 'enabled_configs', 'deliveries', 'dead_deliveries')
    r.enabled_configs = false
  end
end

-- Return the refusal of a config, or nil: {'limited', …}, see lib/limits.lua: its owner has too many configs |
-- {'configs'}: the task has too many configs. A config may replace a config with the same id. `config` has
-- the fields of ConfigSection in config_section.py.
local function refuse_config(keys, config)
  if load_delivery(keys, config.id) then return nil end
  if config.listed ~= '' and redis.call('ZCOUNT', config.listed, '(' .. micros(now()), '+inf') >= tonumber(config.max_listed) then
    return {'limited', 'webhooks', config.max_listed, micros(LONG_WAIT)}
  end
  return #cursor_ids(keys) >= tonumber(config.max_configs) and {'configs'} or nil
end

-- Save a config. A new cursor starts at `delivered`. An existing cursor keeps its position and is due immediately.
local function save_config(keys, r, config, delivered)
  local id, sealed_with = config.id, config.sealed_with
  local cursor = load_delivery(keys, id)
  if cursor and cursor.sealed == config.sealed then return end -- a repeated call
  if cursor then
    delivered = cursor.delivered
    remove_config(keys, r, id, cursor)
  end
  redis.call('HSET', keys.cursors, id .. ':sealed', config.sealed, id .. ':secret', sealed_with,
    id .. ':delivered', micros(delivered))
  r.deliveries, r.dead_deliveries = config.deliveries, config.dead_deliveries
  redis.call('HSET', keys.record, 'deliveries', r.deliveries, 'dead_deliveries', r.dead_deliveries)
  set_delivery_enabled(keys, r, id, true)
  local left = redis.call('PTTL', keys.record)
  if left >= 0 then redis.call('PEXPIRE', keys.cursors, left) end
  redis.call('HSET', config.secrets, config.fingerprint, sealed_with)
  local listed = config.listed
  if listed ~= '' then redis.call('HSET', keys.cursors, id .. ':listed', listed) end
  for _, list in ipairs({sealed_with, listed ~= '' and listed or nil}) do
    redis.call('ZADD', list, micros(expires_at(keys)), task_tag(keys) .. ' ' .. id)
    prune_expired(list)
  end
  schedule_delivery(keys, r, id, delivered, 0)
end
