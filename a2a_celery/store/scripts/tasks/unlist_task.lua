-- unlist_task: remove an ended task from the indexes and from the list of tasks for the archive, because its client
-- received only the agent's message. The task can be read by its id until its keys expire.
-- returns 1, or 0 if the task does not exist or has not ended
-- requires: indexes, keys, retirement, states, tasks

local r = load_record(keys)
if not r or not TERMINAL[r.state] then return 0 end
remove_from_indexes(keys, r, r.state)
if redis.call('ZREM', prefix_of(keys) .. ':archive', task_tag(keys)) == 1 then expire_task(keys, r) end
return 1
