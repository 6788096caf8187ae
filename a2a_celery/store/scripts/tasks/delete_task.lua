-- delete_task: everything of a task, at once.
-- KEYS  a task's ten
-- ARGV  [1] scope
-- returns 1, or 0 when there was no such task
-- requires: context_queue, deletion, full_store, indexes, notifications, runs, tasks
local r = load_record(KEYS)
if not r or r.scope ~= ARGV[1] then return 0 end
allow_on_full_store(KEYS[1])
close_run(r)
leave_context_queue(KEYS, r, 0)
remove_from_indexes(KEYS, r, r.state)
delete_task(KEYS, r)
r.version, r.is_final = math.huge, true -- whoever follows it looks for himself, wherever he stands
notify(KEYS, r)
return 1
