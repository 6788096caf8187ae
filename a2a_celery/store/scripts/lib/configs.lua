-- requires: attempts, deliveries, expiry, keys, time, webhooks

local function remove_config(keys, r, config, cursor)
  local name = task_tag(keys) .. ' ' .. config
  for _, list in ipairs({r.deliveries, r.deliveries .. ':requested', r.dead_deliveries, cursor.secret, cursor.listed}) do
    redis.call('ZREM', list, name)
  end
  for _, list in ipairs({r.dead_deliveries, cursor.secret, cursor.listed}) do prune_expired(list) end
  for _, field in ipairs(DELIVERY_FIELDS) do redis.call('HDEL', keys.push, config .. ':' .. field) end
  remove_attempts(keys, config)
  set_delivery_enabled(keys, r, config, false)
  if redis.call('EXISTS', keys.push) == 0 then
    redis.call('HDEL', keys.record, 'enabled_configs', 'deliveries', 'dead_deliveries')
    r.enabled_configs = false
  end
end

-- Save a config: a table with the fields of ConfigArguments in store/webhooks/push_configs.py. A new cursor starts at `delivered`. An existing cursor keeps its position and is due immediately. Return false if the
-- task has too many configs.
local function save_config(keys, r, config, delivered)
  local id, sealed_with = config.id, config.sealed_with
  local cursor = load_delivery(keys, id)
  if cursor and cursor.sealed == config.sealed then return true end -- a repeated call
  if not cursor and #config_ids(keys) >= tonumber(config.max_configs) then return false end
  if cursor then
    delivered = cursor.delivered
    remove_config(keys, r, id, cursor)
  end
  redis.call('HSET', keys.push, id .. ':sealed', config.sealed, id .. ':secret', sealed_with,
    id .. ':delivered', micros(delivered))
  r.deliveries, r.dead_deliveries = config.deliveries, config.dead_deliveries
  redis.call('HSET', keys.record, 'deliveries', r.deliveries, 'dead_deliveries', r.dead_deliveries)
  set_delivery_enabled(keys, r, id, true)
  local left = redis.call('PTTL', keys.record)
  if left >= 0 then redis.call('PEXPIRE', keys.push, left) end
  redis.call('HSET', config.secrets, config.fingerprint, sealed_with)
  local listed = config.listed
  if listed ~= '' then redis.call('HSET', keys.push, id .. ':listed', listed) end
  for _, list in ipairs({sealed_with, listed ~= '' and listed or nil}) do
    redis.call('ZADD', list, micros(expires_at(keys)), task_tag(keys) .. ' ' .. id)
    prune_expired(list)
  end
  schedule_delivery(keys, r, id, delivered, 0)
  return true
end
