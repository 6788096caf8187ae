-- save_push_config: save a push-notification config of a task, or replace the config with the same id. The undelivered
-- events of a replaced config are due immediately, for the new config. A deliverer of the replaced config loses its
-- lease.
-- returns {'missing'} | {'saved'} | {'limited', …} or {'configs'}, see refuse_config
-- requires: configs, tasks

local r = load_record(keys)
if not r or (scope ~= '*' and r.scope ~= scope) then return {'missing'} end
local refused = refuse_config(keys, config)
if refused then return refused end
save_config(keys, r, config, r.version)
return {'saved'}
