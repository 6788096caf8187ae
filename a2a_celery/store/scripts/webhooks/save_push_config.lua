-- save_push_config: save a push-notification config of a task, or replace the config with the same id. The undelivered
-- events of a replaced config are due immediately, for the new config. A deliverer of the replaced config loses its
-- lease.
-- returns 'missing' | 'saved' | 'full': the task has too many configs | {'limited', see lib/limits.lua}: the owner has
--       too many webhooks
-- requires: configs, limits, tasks

local r = load_record(keys)
if not r or (scope ~= '*' and r.scope ~= scope) then return 'missing' end
local exceeded = exceeded_webhooks(keys, config)
if exceeded then return exceeded end
return save_config(keys, r, config, r.version) and 'saved' or 'full'
