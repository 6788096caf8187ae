-- claim_run: assign a queued run to one worker, under a lease. SUBMITTED → WORKING if requested; WORKING → WORKING if
-- the run is a retry.
-- returns {'dropped', reason} | {'other_code_version', code_version, options}: see lib/code_versions.lua
--       | {'unrecorded', context}: the caller must repeat the call with the event of the retry
--       | {'claimed', turn, attempt, request, caller, ask_count, interrupted_state, scope, options, snapshot, activities,
--       journal, journal_origin, turn_messages, other_code_version, value of each section…}
--       activities are the newest activities of the task. In the task's first run before any retry, sections determine the activities.
--       journal is {key, entry, …}, or '' if the journal is too large; see read_journal
--       other_code_version is the version to which the journal belongs, or '' if it is the version of the worker
-- requires: code_versions, context_queue, journal, metrics, notifications, own_metadata, runs, snapshot, states, status, tasks, time, transitions

-- Return true if the metadata of the task shows that the run was delayed or suspended.
local function was_delayed(r)
  if r.state ~= WORKING then return false end
  for _, value in ipairs(redis.call('HMGET', keys.metadata, unpack(DELAY_KEYS))) do
    if value then return true end
  end
  return false
end

local r = load_record(keys)
if not r then return {'dropped', 'no such task'} end
if TERMINAL[r.state] then return {'dropped', 'the task has ended'} end
if r.run ~= run then return {'dropped', 'outdated: the task is at run ' .. micros(r.run)} end
if r.phase ~= 'queued' and r.phase ~= 'running' then return {'dropped', 'the run is over'} end
local retried_run, recorded_retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
recorded_retries = tonumber(retried_run) == run and tonumber(recorded_retries) or 0
if r.phase == 'queued' and retries < recorded_retries then -- a redelivered message that is older than the retry
  return {'dropped', 'outdated: the run is at retry ' .. micros(recorded_retries)}
end
local is_unrecorded_retry = r.phase == 'running' and r.token ~= token
if is_unrecorded_retry and retries <= recorded_retries then return {'dropped', 'claimed before'} end
if is_unrecorded_retry and not retried then return {'unrecorded', r.context} end
if r.phase == 'queued' and is_blocked(keys, r) then return {'dropped', 'another run of its context comes first'} end
local is_claimed_now = is_unrecorded_retry or r.phase == 'queued'
if is_claimed_now and r.code_version and r.code_version ~= code_version and not claims_other_code_version then
  return {'other_code_version', r.code_version, r.options or ''}
end
if is_unrecorded_retry then
  -- Celery publishes a retry before the task can record it. The previous holder of the claim can no longer write.
  write_status(keys, r, WORKING, '0', retried.content)
  merge_metadata(keys, retried.metadata)
  notify(keys, r)
  close_run(r)
  r.phase = 'queued'
  count_metric(r, 'retried', 'runs')
end
if r.phase == 'queued' then
  claim_code_version(keys, r, code_version)
  r.phase, r.token, r.runner, r.seq = 'running', token, runner, 0
  redis.call('ZADD', r.leases, micros(now() + lease_us), run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  leave_queue(r)
  observe_duration(r, 'queue', math.max(r.at, tonumber(r.begins_at or 0), tonumber(r.resumed_at or 0),
      r.context_queue and tonumber(r.unblocked_at or 0) or 0))
  redis.call('HSET', keys.record, 'max_attempts', micros(max_attempts + tonumber(r.uncounted_attempts or '0')),
    'claimed_at', micros(now()), 'worker', worker)
  if retries ~= 0 then redis.call('HSET', keys.record, 'retry_state', micros(run) .. ' ' .. micros(retries)) end
  if was_delayed(r) or working and r.state ~= WORKING and LEGAL[r.state][WORKING] then
    write_status(keys, r, WORKING, '0', r.working_event)
    notify(keys, r)
  end
  save_record(keys, r)
end
local is_first = r.turn == 1 and r.attempt == 1 and retries == 0
local activities = is_first and {} or newest_activities(keys)
local request, caller, ask_count, interrupted_state, options = unpack(redis.call('HMGET', keys.record, 'request', 'caller',
  'ask_count', 'interrupted_state', 'options'))
return {
  'claimed', micros(r.turn), micros(r.attempt), request, caller, ask_count or '0', interrupted_state or '', r.scope,
  options or '', snapshot(keys, r, -1, true), activities,
  small_journal(keys, r) or '', r.journal_origin or '', r.turn > 1 and r.turn_messages or '',
  r.claimed_version and r.code_version or '', claimed_sections(keys, r, is_first and activities),
}
