-- requires: expiry, keys, time

-- Return the quoted ids of a task's configs.
local function config_ids(keys)
  local configs = {}
  for _, field in ipairs(redis.call('HKEYS', keys.push)) do
    configs[#configs + 1] = string.match(field, '^(.*):sealed$')
  end
  table.sort(configs)
  return configs
end

-- Let the delivery cursors of an ended task expire with the task.
local function expire_deliveries(keys, r)
  local at = micros(now() + tonumber(r.retention) * 1000000)
  for _, config in ipairs(config_ids(keys)) do
    for _, list in ipairs({r.dead_deliveries, redis.call('HGET', keys.push, config .. ':secret'),
      redis.call('HGET', keys.push, config .. ':listed') or nil}) do
      redis.call('ZADD', list, 'XX', at, task_tag(keys) .. ' ' .. config)
      prune_expired(list)
    end
  end
  redis.call('EXPIRE', keys.push, r.retention)
end
