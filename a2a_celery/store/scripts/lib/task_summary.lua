-- Return a task for operators, or nil if the task does not exist: its `score` in the list, then fields of its record,
-- none of which contains text from a client or an agent. The field `at` is the time at which the task entered its
-- state.
local function task_summary(record, score)
  local summary = redis.call('HMGET', record, 'task_id', 'run', 'agent', 'context', 'scope', 'state', 'at', 'runner', 'attempt',
    'max_attempts', 'cancel_requested_at', 'republish_count', 'begins_at', 'claimed_at', 'entered_at')
  if not summary[1] then return nil end
  summary[7] = table.remove(summary) or summary[7]
  table.insert(summary, 1, score)
  return summary
end
