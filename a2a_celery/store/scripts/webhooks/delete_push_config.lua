-- delete_push_config: delete a push-notification config and its delivery cursor. A deliverer loses its lease.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), quoted config id
-- returns 1, even if the config does not exist, or 0 if the task does not exist
-- requires: configs, deliveries, tasks
local scope, config = ARGV[1], ARGV[2]

local r = load_record(KEYS)
if not r or (scope ~= '*' and r.scope ~= scope) then return 0 end
local cursor = load_delivery(KEYS, config)
if cursor then remove_config(KEYS, r, config, cursor) end
return 1
