-- read_steps: what the runs of a task went through, for an operator.
-- KEYS  a task's ten
-- ARGV  none
-- returns {µs now, agent, context, state, run, phase, steps}; {} when there is no such task
-- requires: time
local r = redis.call('HMGET', KEYS[1], 'agent', 'context', 'state', 'run', 'phase')
if not r[1] then return {} end
return {micros(now()), r[1], r[2], r[3], r[4], r[5], redis.call('LRANGE', KEYS[10], 0, -1)}
