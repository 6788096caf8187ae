-- delete_task: delete all data of a task.
-- KEYS  keys of the task
-- ARGV  scope
-- returns 1, or 0 if the task does not exist
-- requires: context_queue, deletion, full_store, indexes, notifications, runs, tasks
local record = KEYS[1]
local scope = ARGV[1]

local r = load_record(KEYS)
if not r or r.scope ~= scope then return 0 end
allow_on_full_store(record)
close_run(r)
leave_context_queue(KEYS, r, 0)
remove_from_indexes(KEYS, r, r.state)
delete_task(KEYS, r)
r.version, r.is_final = math.huge, true -- wakes each follower, regardless of the version that it has read
notify(KEYS, r)
return 1
