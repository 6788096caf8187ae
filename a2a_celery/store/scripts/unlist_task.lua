-- unlist_task: an ended task whose client received the agent's message alone leaves the lists of tasks, and the list of
-- those that wait for the archive. It can be read by its id until its keys expire.
-- KEYS  a task's ten
-- ARGV  none
-- gives 0 when no such task has ended, else 1
local r = load(KEYS)
if not r or not TERMINAL[r.state] then return 0 end
unlist(KEYS, r, r.state)
if redis.call('ZREM', string.match(KEYS[1], '^(.*):{') .. ':archive', tag(KEYS)) == 1 then let_expire(KEYS, r) end
return 1
