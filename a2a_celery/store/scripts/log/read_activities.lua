-- read_activities: return the newest execution activities of a task.
-- returns {current time in µs, agent, context, state, run, phase, version of the agent's code ('' for none), activities,
--       scope, traceparent of the newest turn ('' for none), '1' if the task can be resubmitted, else '0', µs at which
--       the newest run was queued after a suspension (0 for none)}
--       | {}: the task does not exist
-- requires: keys, packed, time

local r = redis.call('HMGET', keys.record, 'agent', 'context', 'state', 'run', 'phase', 'code_version', 'scope',
  'trace', 'packed', 'task_id', 'resumed_at')
if not r[1] then return {} end
local activities = not r[9] and redis.call('LRANGE', keys.execution, 0, -1)
  or select(2, unpack_task(keys, {task_id = r[10], context = r[2]}))
return {micros(now()), r[1], r[2], r[3], r[4], r[5] or '', r[6] or '', activities, r[7], r[8] or '',
  redis.call('ZSCORE', resubmittable, task_tag(keys)) and '1' or '0', r[11] or '0'}
