-- read_push_configs: return the push-notification configs of a task, or one config.
-- returns nil: the task does not exist | {quoted id, sealed config, …}
-- requires: cursors

local r = redis.call('HMGET', keys.record, 'scope', 'enabled_configs')
if not r[1] or (scope ~= '*' and r[1] ~= scope) then return nil end
local configs = {}
for _, config in ipairs(config_id and {config_id} or r[2] and cursor_ids(keys) or {}) do
  local sealed = redis.call('HGET', keys.cursors, config .. ':sealed')
  if sealed then
    configs[#configs + 1] = config
    configs[#configs + 1] = sealed
  end
end
return configs
