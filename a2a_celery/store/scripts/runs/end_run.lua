-- end_run: end a run, and its task, on behalf of its worker. any live state → terminal; → CANCELED if a client
-- requested cancellation. An interrupted task has no run to end. A task that fails because its worker was lost
-- leaves a dead letter.
-- KEYS  keys of the task
-- ARGV  run, prefix of the runner's id, '1' if the worker was lost, list of dead letters, number of lost processes
--       after which an unclaimed run ends, retry count of the Celery message that caused the call ('' for no message),
--       final event
--       A claimed run is ended only if the id of its runner has the prefix. '' ends only an unclaimed run. If the
--       worker was lost and the turn may have another attempt, only the lease ends. If the worker was lost before it
--       claimed the run, the run is published again.
-- returns {'over', version, state}: the run has ended, by this call or an earlier call
--       | {'unchanged'}: the run does not exist, belongs to another process or to a later retry, or will have another
--       attempt
-- requires: context_queue, events, full_store, incoming, metrics, notifications, retirement, runs, states, status, tasks, time
local record = KEYS[1]
local run, runner_prefix, worker_was_lost, dead_letters = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4]
local max_lost, retries, first_event = tonumber(ARGV[5]), tonumber(ARGV[6]), 7

-- Count a process that was lost after it received the run's message and before it claimed the run. Return the number of
-- such processes.
local function count_lost_process(keys, r, process)
  local lost = r.lost_processes or ''
  if not string.find(' ' .. lost, ' ' .. process .. ' ', 1, true) then lost = lost .. process .. ' ' end
  redis.call('HSET', keys[1], 'lost_processes', lost)
  return select(2, string.gsub(lost, ' ', ''))
end

local r = load_record(KEYS)
if not r or r.run ~= tonumber(run) or r.phase == 'delegated' or r.phase == 'suspended' then return {'unchanged'} end
local retried_run, recorded_retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
if retries and retried_run == run and retries < tonumber(recorded_retries) then return {'unchanged'} end
allow_on_full_store(record)
if r.phase == 'running' then
  if runner_prefix == '' or string.sub(r.runner, 1, #runner_prefix) ~= runner_prefix then return {'unchanged'} end
  if r.cancel_requested == '1' then
    write_status(KEYS, r, CANCELED, '1', r.canceled_event)
  elseif worker_was_lost and (is_interrupting(r) or r.attempt < tonumber(r.max_attempts)) then
    redis.call('ZADD', r.leases, micros(now()), run_name(r))
    return {'unchanged'}
  else
    apply_events(KEYS, r, first_event)
  end
elseif r.phase == 'queued' then
  if worker_was_lost and count_lost_process(KEYS, r, runner_prefix) < max_lost then
    if not is_blocked(KEYS, r) then redis.call('ZADD', r.dispatch, micros(now()), run_name(r)) end
    return {'unchanged'}
  end
  apply_events(KEYS, r, first_event)
end
if r.phase ~= '' then
  end_task(KEYS, r, worker_was_lost and r.state == FAILED and dead_letters)
  if worker_was_lost then count_metric(r, 'lost', r.state == FAILED and 'failed' or 'canceled') end
  save_record(KEYS, r)
  notify(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
