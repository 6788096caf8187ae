-- read_states: the states of tasks; nothing changes.
-- KEYS  the records of the tasks
-- ARGV  none
-- returns the number of each one's state, '' for a task that is not there
local answer = {}
for i, record in ipairs(KEYS) do answer[i] = redis.call('HGET', record, 'state') or '' end
return answer
