-- save_push_config: save a push-notification config of a task, or replace the config with the same id. The undelivered
-- events of a replaced config are due immediately, for the new config. A deliverer of the replaced config loses its
-- lease.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), and the config: the arguments of save_config
-- returns 'missing' | 'saved' | 'full': the task has too many configs | {'limited', see check_limits}: the owner has
--       too many webhooks
-- requires: configs, limits, tasks
local scope, first_config = ARGV[1], 2

local r = load_record(KEYS)
if not r or (scope ~= '*' and r.scope ~= scope) then return 'missing' end
local exceeded = exceeded_webhooks(KEYS, first_config)
if exceeded then return exceeded end
return save_config(KEYS, r, first_config, r.version) and 'saved' or 'full'
