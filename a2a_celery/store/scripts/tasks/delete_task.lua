-- delete_task: delete all data of a task.
-- returns 1, or 0 if the task does not exist
-- requires: context_queue, deletion, full_store, indexes, notifications, runs, tasks

local r = load_record(keys)
if not r or r.scope ~= scope then return 0 end
allow_on_full_store(keys.record)
close_run(r)
leave_context_queue(keys, r, 0)
remove_from_indexes(keys, r, r.state)
delete_task(keys, r)
r.version, r.is_final = math.huge, true -- wakes each follower, regardless of the version that it has read
notify(keys, r)
return 1
