-- delete_push_config: a push-notification config and its line, at once: who has it in hand has lost it.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2] the config's id, quoted
-- returns 0 when there is no such task, else 1, also when there was no such config
-- requires: configs, deliveries, tasks
local r = load_record(KEYS)
if not r or (ARGV[1] ~= '*' and r.scope ~= ARGV[1]) then return 0 end
local line = load_delivery(KEYS, ARGV[2])
if line then remove_config(KEYS, r, ARGV[2], line) end
return 1
