-- read_steps: return the newest execution steps of a task.
-- KEYS  keys of the task
-- ARGV  none
-- returns {current time in µs, agent, context, state, run, phase, version of the agent's code ('' for none), steps,
--       scope, traceparent of the newest turn ('' for none)} | {}: the task does not exist
-- requires: packed, time
local record, execution = KEYS[1], KEYS[10]

local r = redis.call('HMGET', record, 'agent', 'context', 'state', 'run', 'phase', 'code_version', 'scope',
  'trace', 'packed', 'task_id', 'at')
if not r[1] then return {} end
local task = {task_id = r[10], context = r[2], at = r[11]}
local steps = not r[9] and redis.call('LRANGE', execution, 0, -1) or select(2, unpack_task(KEYS, task))
return {micros(now()), r[1], r[2], r[3], r[4], r[5] or '', r[6] or '', steps, r[7], r[8] or ''}
