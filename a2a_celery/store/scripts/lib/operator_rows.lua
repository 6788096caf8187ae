-- Return a task as operators list it: `score` in the list, then fields of its record that contain no text of a client
-- or an agent, or nil if the task does not exist. The field `at` is the time at which the task entered its state.
local function operator_row(record, score)
  local row = redis.call('HMGET', record, 'task_id', 'run', 'agent', 'context', 'scope', 'state', 'at', 'runner', 'attempt',
    'max_attempts', 'cancel_requested_at', 'republish_count', 'begins_at', 'claimed_at', 'entered_at')
  if not row[1] then return nil end
  row[7] = table.remove(row) or row[7]
  table.insert(row, 1, score)
  return row
end
