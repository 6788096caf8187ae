-- requires: packed, states, tasks, time

local MAX_STATUS_BYTES = 4096 -- a status that this package writes is shorter

-- Return the final status event of a task without a result, or '' for other tasks. `summary` has the fields of the
-- record in the order of `task_summary`.
local function failed_status(keys, summary)
  local state = tonumber(summary[6])
  if not TERMINAL[state] or state == COMPLETED then return '' end
  local status = redis.call('HGET', keys.record, 'status') or unpack_status(keys)
  local refers_to_blobs = string.byte(status) == 0
  return #status <= MAX_STATUS_BYTES and not refers_to_blobs and status or ''
end

-- Return a task for operators, or nil if the task does not exist: its `score` in the list, then fields of its record,
-- none of which contains text from a client or an agent. The field `at` is the time at which the task entered its
-- state. The field `max_attempts` is false before the first claim of a turn. The last fields are the time since which a run that is not claimed waits, the final status event of a task
-- without a result, which may contain a text from the agent, and 1 if the task can be resubmitted.
local function task_summary(keys, score)
  local record = keys.record
  local summary = redis.call('HMGET', record, 'task_id', 'run', 'agent', 'context', 'scope', 'state', 'at', 'runner', 'attempt',
    'max_attempts', 'cancel_requested_at', 'republish_count', 'claimed_at')
  if not summary[1] then return nil end
  local times = redis.call('HMGET', record, 'entered_at', 'begins_at', 'unblocked_at', 'resumed_at', 'token')
  local was_claimed = (times[5] or '') ~= ''
  summary[9], summary[10] = summary[9] or micros(DEFAULTS.attempt), summary[10] or was_claimed and DEFAULTS.max_attempts
  summary[14] = micros(math.max(summary[7], times[2] or 0, times[3] or 0, times[4] or 0))
  summary[15] = failed_status(keys, summary)
  summary[16] = tonumber(summary[6]) == FAILED and micros(redis.call('HEXISTS', record, 'request')) or '0'
  summary[7] = times[1] or summary[7]
  table.insert(summary, 1, score)
  return summary
end
