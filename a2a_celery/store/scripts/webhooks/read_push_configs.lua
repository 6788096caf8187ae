-- read_push_configs: a task's push-notification configs, or one of them.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2] the one's id, quoted; '' for all
-- returns nil when there is no such task | {id, quoted, sealed, …}
-- requires: webhooks
local r = redis.call('HMGET', KEYS[1], 'scope', 'enabled_configs')
if not r[1] or (ARGV[1] ~= '*' and r[1] ~= ARGV[1]) then return nil end
local found = {}
for _, config in ipairs(ARGV[2] ~= '' and {ARGV[2]} or r[2] and config_ids(KEYS) or {}) do
  local sealed = redis.call('HGET', KEYS[9], config .. ':sealed')
  if sealed then
    found[#found + 1] = config
    found[#found + 1] = sealed
  end
end
return found
