-- read_states: return the states of tasks.
-- KEYS  records of the tasks
-- ARGV  none
-- returns the number of each state, or '' for a task that does not exist
local states = {}
for i, record in ipairs(KEYS) do states[i] = redis.call('HGET', record, 'state') or '' end
return states
