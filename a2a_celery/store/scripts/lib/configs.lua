-- requires: attempts, deliveries, expiry, keys, time, webhooks

local function remove_config(keys, r, config, cursor)
  local name = task_tag(keys) .. ' ' .. config
  for _, list in ipairs({r.deliveries, r.deliveries .. ':requested', r.dead_deliveries, cursor.secret, cursor.listed}) do
    redis.call('ZREM', list, name)
  end
  for _, list in ipairs({r.dead_deliveries, cursor.secret, cursor.listed}) do prune_expired(list) end
  for _, field in ipairs(DELIVERY_FIELDS) do redis.call('HDEL', keys[9], config .. ':' .. field) end
  remove_attempts(keys, config)
  set_delivery_enabled(keys, r, config, false)
  if redis.call('EXISTS', keys[9]) == 0 then
    redis.call('HDEL', keys[1], 'enabled_configs', 'deliveries', 'dead_deliveries')
    r.enabled_configs = false
  end
end

-- Save a config. Arguments from ARGV[first] on: quoted id ('' for no config), sealed config, fingerprint of its secret,
-- key of the list sealed with that secret, key of the secrets, deliveries key, dead deliveries key, maximum number of
-- configs of the task, key of the list of the owner's cursors ('' for no limit), maximum length of that list (see
-- exceeded_webhooks).
-- A new cursor starts at `delivered`. An existing cursor keeps its position and is due immediately. Return false if the
-- task has too many configs.
local function save_config(keys, r, first, delivered)
  local config, sealed, fingerprint, secret, secrets, deliveries, dead = unpack(ARGV, first, first + 6)
  if config == '' then return true end
  local cursor = load_delivery(keys, config)
  if cursor and cursor.sealed == sealed then return true end -- a repeated call
  if not cursor and #config_ids(keys) >= tonumber(ARGV[first + 7]) then return false end
  if cursor then
    delivered = cursor.delivered
    remove_config(keys, r, config, cursor)
  end
  redis.call('HSET', keys[9], config .. ':sealed', sealed, config .. ':secret', secret,
    config .. ':delivered', micros(delivered))
  r.deliveries, r.dead_deliveries = deliveries, dead
  redis.call('HSET', keys[1], 'deliveries', deliveries, 'dead_deliveries', dead)
  set_delivery_enabled(keys, r, config, true)
  local left = redis.call('PTTL', keys[1])
  if left >= 0 then redis.call('PEXPIRE', keys[9], left) end
  redis.call('HSET', secrets, fingerprint, secret)
  local listed = ARGV[first + 8]
  if listed ~= '' then redis.call('HSET', keys[9], config .. ':listed', listed) end
  for _, list in ipairs({secret, listed ~= '' and listed or nil}) do
    redis.call('ZADD', list, micros(expires_at(keys)), task_tag(keys) .. ' ' .. config)
    prune_expired(list)
  end
  schedule_delivery(keys, r, config, delivered, 0)
  return true
end
