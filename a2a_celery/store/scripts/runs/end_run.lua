-- end_run: end a run, and its task, on behalf of its worker. any live state → terminal; → CANCELED if a client
-- requested cancellation. An interrupted task has no run to end. A task that fails because its worker was lost
-- can be resubmitted.
-- returns {'over', version, state}: the run has ended, by this call or an earlier call
--       | {'unchanged'}: the run does not exist, belongs to another process or to a later retry, or will have another
--       attempt
-- requires: context_queue, events, full_store, incoming, metrics, notifications, retirement, runs, states, status, tasks, time
-- Count a process that was lost after it received the run's message and before it claimed the run. Return the number of
-- such processes.

local function count_lost_process(keys, r, process)
  local processes = r.lost_processes or ''
  if not string.find(' ' .. processes, ' ' .. process .. ' ', 1, true) then processes = processes .. process .. ' ' end
  redis.call('HSET', keys.record, 'lost_processes', processes)
  return select(2, string.gsub(processes, ' ', ''))
end

local r = load_record(keys)
if not r or r.run ~= run or r.phase == 'delegated' or r.phase == 'suspended' then return {'unchanged'} end
local retried_run, recorded_retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
if retries and tonumber(retried_run) == run and retries < tonumber(recorded_retries) then return {'unchanged'} end
allow_on_full_store(keys.record)
if r.phase == 'running' then
  if not runner or string.sub(r.runner, 1, #runner) ~= runner then return {'unchanged'} end
  if r.cancel_requested == '1' then
    write_status(keys, r, CANCELED, '1', r.canceled_event)
  elseif lost and (is_interrupting(r) or r.attempt < tonumber(r.max_attempts)) then
    redis.call('ZADD', r.leases, micros(now()), run_name(r))
    return {'unchanged'}
  else
    apply_events(keys, r, {event})
  end
elseif r.phase == 'queued' then
  if lost and count_lost_process(keys, r, runner or '') < MAX_LOST_BEFORE_CLAIM then
    if not is_blocked(keys, r) then redis.call('ZADD', r.dispatch, micros(now()), run_name(r)) end
    return {'unchanged'}
  end
  apply_events(keys, r, {event})
end
if r.phase ~= '' then
  end_task(keys, r, lost and r.state == FAILED)
  if lost then count_metric(r, 'lost', r.state == FAILED and 'failed' or 'canceled') end
  save_record(keys, r)
  notify(keys, r)
end
return {'over', micros(r.version), micros(r.state)}
