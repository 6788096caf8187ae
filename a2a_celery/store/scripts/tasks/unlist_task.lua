-- unlist_task: an ended task whose client received the agent's message alone leaves the lists of tasks, and the list of
-- those that wait for the archive. It can be read by its id until its keys expire.
-- KEYS  a task's ten
-- ARGV  none
-- returns 0 when no such task has ended, else 1
-- requires: indexes, keys, retirement, states, tasks
local r = load_record(KEYS)
if not r or not TERMINAL[r.state] then return 0 end
remove_from_indexes(KEYS, r, r.state)
if redis.call('ZREM', string.match(KEYS[1], '^(.*):{') .. ':archive', task_tag(KEYS)) == 1 then expire_task(KEYS, r) end
return 1
