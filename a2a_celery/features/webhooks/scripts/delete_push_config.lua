-- delete_push_config: delete a push-notification config and its delivery cursor. A deliverer loses its lease.
-- returns 1, even if the config does not exist, or 0 if the task does not exist
-- requires: configs, deliveries, tasks

local r = load_record(keys)
if not r or (scope ~= '*' and r.scope ~= scope) then return 0 end
local cursor = load_delivery(keys, config_id)
if cursor then remove_config(keys, r, config_id, cursor) end
return 1
