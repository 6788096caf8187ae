-- unlist_task: remove an ended task from the indexes and from the list of tasks for the archive, because its client
-- received only the agent's message. The task can be read by its id until its keys expire.
-- KEYS  keys of the task
-- ARGV  none
-- returns 1, or 0 if the task does not exist or has not ended
-- requires: indexes, keys, retirement, states, tasks
local record = KEYS[1]

local r = load_record(KEYS)
if not r or not TERMINAL[r.state] then return 0 end
remove_from_indexes(KEYS, r, r.state)
if redis.call('ZREM', string.match(record, '^(.*):{') .. ':archive', task_tag(KEYS)) == 1 then expire_task(KEYS, r) end
return 1
