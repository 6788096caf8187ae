-- read_push_configs: return the push-notification configs of a task, or one config.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), quoted config id ('' for all configs)
-- returns nil: the task does not exist | {quoted id, sealed config, …}
-- requires: webhooks
local record, push = KEYS[1], KEYS[9]
local scope, wanted = ARGV[1], ARGV[2]

local r = redis.call('HMGET', record, 'scope', 'enabled_configs')
if not r[1] or (scope ~= '*' and r[1] ~= scope) then return nil end
local configs = {}
for _, config in ipairs(wanted ~= '' and {wanted} or r[2] and config_ids(KEYS) or {}) do
  local sealed = redis.call('HGET', push, config .. ':sealed')
  if sealed then
    configs[#configs + 1] = config
    configs[#configs + 1] = sealed
  end
end
return configs
