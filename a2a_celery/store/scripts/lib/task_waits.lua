-- requires: keys, states, suspension, tasks, time

-- A run can wait for another task: the run is suspended until it receives a signal that no client can send. The script
-- that ends or interrupts the other task resumes the run. The record of the other task has `resumes` as long as a run
-- waits for the task: number of the run's turn, quoted id of the run's task, and name of the signal. A task resumes only
-- the newest run that waits for it.

-- Record that a run of the task `id` waits for the task with the keys `keys`.
local function await_task(keys, id, turn, signal)
  redis.call('HSET', keys.record, 'resumes', micros(turn) .. ' ' .. quoted(id) .. ' ' .. signal)
end

-- Return true if a task has ended, waits for its client, or does not exist.
local function is_final(keys)
  local state = tonumber(redis.call('HGET', keys.record, 'state'))
  return not state or TERMINAL[state] or INTERRUPTED[state] or false
end

-- Resume the run that waits for this task, which has ended or waits for its client.
local function resume_waiting_run(keys, r)
  if not r.resumes then return end
  redis.call('HDEL', keys.record, 'resumes')
  local tag, signal = string.match(r.resumes, '^%d+ (%S+) (.*)$')
  local waiting_keys = keys_of(prefix_of(keys), tag)
  local waiting = load_record(waiting_keys)
  if not waiting or waiting.phase ~= 'suspended' or waiting.wait_signal ~= signal then return end
  resume_run(waiting_keys, waiting, '', 0)
  save_record(waiting_keys, waiting)
end
