-- save_push_config: a task's push-notification config, new or in place of the one with its id; no event. What is owed to
-- one that is replaced is due at once, at its new address; who has the old one in hand has lost it.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2…11] the config: what save_config takes
-- returns 'missing' | 'saved' | 'full': the task has too many | {'limited', …}: its owner has, see refused
-- requires: configs, limits, tasks
local r = load_record(KEYS)
if not r or (ARGV[1] ~= '*' and r.scope ~= ARGV[1]) then return 'missing' end
local over = exceeded_webhooks(KEYS, 2)
if over then return over end
return save_config(KEYS, r, 2, r.version) and 'saved' or 'full'
