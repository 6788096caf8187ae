-- read_states: return the states of tasks.
-- returns the number of each state, or '' for a task that does not exist

local states = {}
for i, record in ipairs(records) do states[i] = redis.call('HGET', record, 'state') or '' end
return states
