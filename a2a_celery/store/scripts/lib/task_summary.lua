-- requires: time

-- Return a task for operators, or nil if the task does not exist: its `score` in the list, then fields of its record,
-- none of which contains text from a client or an agent. The field `at` is the time at which the task entered its
-- state. The last field is the time since which a run that is not claimed waits.
local function task_summary(record, score)
  local summary = redis.call('HMGET', record, 'task_id', 'run', 'agent', 'context', 'scope', 'state', 'at', 'runner', 'attempt',
    'max_attempts', 'cancel_requested_at', 'republish_count', 'claimed_at')
  if not summary[1] then return nil end
  local times = redis.call('HMGET', record, 'entered_at', 'begins_at', 'unblocked_at', 'resumed_at')
  summary[14] = micros(math.max(summary[7], times[2] or 0, times[3] or 0, times[4] or 0))
  summary[7] = times[1] or summary[7]
  table.insert(summary, 1, score)
  return summary
end
