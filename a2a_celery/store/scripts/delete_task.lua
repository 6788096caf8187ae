-- delete_task: everything of a task, at once.
-- KEYS  a task's ten
-- ARGV  [1] scope
-- gives 1, or 0 when there was no such task
local r = load(KEYS)
if not r or r.scope ~= ARGV[1] then return 0 end
close_run(r)
leave_row(KEYS, r, 0)
unlist(KEYS, r, r.state)
delete_task(KEYS, r)
r.version, r.stopped = math.huge, true -- whoever follows it looks for himself, wherever he stands
wake(KEYS, r)
return 1
