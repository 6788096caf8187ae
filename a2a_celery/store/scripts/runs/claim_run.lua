-- claim_run: assign a queued run to one worker, under a lease. SUBMITTED → WORKING if requested; WORKING → WORKING if
-- the run is a retry.
-- KEYS  keys of the task
-- ARGV  run, token of the claim, id of the worker process, length of the lease in µs, '1' to write WORKING, maximum
--       number of runs of a turn, number of times that Celery retried the run, WORKING event of the retry ('' if
--       unknown), its packed metadata, prefix of the keys of sessions ('' for an agent without sessions), Celery node
--       name of the worker ('' if events are disabled), version of the agent's code in the worker ('' for none), '1' to
--       claim a run of a different version
-- returns {'dropped', reason} | {'other_version', version, options}: see lib/versions.lua
--       | {'unrecorded', context}: the caller must repeat the call with the event of the retry
--       | {'claimed', turn, attempt, request, caller, ask_count, interrupted_state, scope, options, snapshot, session,
--       steps, journal, journal_origin, turn_messages, read_messages, other_version}
--       session is {} or {version, state, '1' if an earlier run of the same turn saved the session}
--       steps are the newest steps of the task or, in the task's first run before any retry, of the session
--       journal is {key, entry, …}, or '' if the journal is too large; see read_journal
--       other_version is the version to which the journal belongs, or '' if it is the version of the worker
-- requires: context_queue, journal, keys, metrics, notifications, own_metadata, runs, sessions, snapshot, states, status, tasks, time, transitions, versions
local record, metadata, execution = KEYS[1], KEYS[6], KEYS[10]
local run, token, runner, lease_us, writes_working, max_attempts = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6]
local retries, retry_event, retry_metadata, session_prefix, worker = tonumber(ARGV[7]), ARGV[8], ARGV[9], ARGV[10], ARGV[11]
local version, claims_other_version = ARGV[12], ARGV[13] == '1'

local function session_key(r) return session_prefix .. r.scope .. ':' .. quoted(r.context) end

local function session_of(r)
  if session_prefix == '' then return {} end
  local saved = redis.call('HMGET', session_key(r), 'version', 'state', 'task', 'turn')
  if not saved[1] then return {} end
  renew_session(r, session_key(r)) -- if this run is lost, the next attempt needs the session
  local is_own = saved[3] == r.task_id or
    string.find(' ' .. (r.requeued_from or ''), ' ' .. quoted(saved[3]) .. ' ', 1, true)
  return {saved[1], saved[2], is_own and saved[4] == micros(r.turn) and '1' or '0'}
end

-- Return true if the metadata of the task shows that the run was delayed or suspended.
local function was_delayed(r)
  if r.state ~= WORKING then return false end
  for _, value in ipairs(redis.call('HMGET', metadata, unpack(DELAY_KEYS))) do
    if value then return true end
  end
  return false
end

local function steps_before(r)
  if r.turn > 1 or r.attempt > 1 or retries ~= 0 then return redis.call('LRANGE', execution, -SAVED_STEPS, -1) end
  if session_prefix == '' then return {} end
  local steps = {}
  for step in string.gmatch(redis.call('HGET', session_key(r), 'execution') or '', '[^\n]+') do steps[#steps + 1] = step end
  return steps
end

local r = load_record(KEYS)
if not r then return {'dropped', 'no such task'} end
if TERMINAL[r.state] then return {'dropped', 'the task has ended'} end
if r.run ~= tonumber(run) then return {'dropped', 'outdated: the task is at run ' .. micros(r.run)} end
if r.phase ~= 'queued' and r.phase ~= 'running' then return {'dropped', 'the run is over'} end
local retried_run, recorded_retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
recorded_retries = retried_run == run and tonumber(recorded_retries) or 0
if r.phase == 'queued' and retries < recorded_retries then -- a redelivered message that is older than the retry
  return {'dropped', 'outdated: the run is at retry ' .. micros(recorded_retries)}
end
if r.phase == 'running' and r.token ~= token then
  if retries <= recorded_retries then return {'dropped', 'claimed before'} end
  if retry_event == '' then return {'unrecorded', r.context} end
  -- Celery publishes a retry before the task can record it. The previous holder of the claim can no longer write.
  write_status(KEYS, r, WORKING, '0', retry_event)
  merge_metadata(KEYS, retry_metadata)
  notify(KEYS, r)
  close_run(r)
  r.phase = 'queued'
  count_metric(r, 'retried', 'runs')
end
if r.phase == 'queued' then
  if is_blocked(KEYS, r) then return {'dropped', 'another run of its context comes first'} end
  if r.code_version and r.code_version ~= version and not claims_other_version then
    return {'other_version', r.code_version, r.options or ''}
  end
  claim_version(KEYS, r, version)
  r.phase, r.token, r.runner, r.seq = 'running', token, runner, 0
  redis.call('ZADD', r.leases, micros(now() + tonumber(lease_us)), run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  leave_queue(r)
  observe_duration(r, 'queue', math.max(r.at, tonumber(r.begins_at or 0), tonumber(r.resumed_at or 0),
      r.context_queue and tonumber(r.unblocked_at or 0) or 0))
  redis.call('HSET', record, 'max_attempts', micros(tonumber(max_attempts) + tonumber(r.uncounted_attempts or '0')),
    'claimed_at', micros(now()), 'worker', worker)
  if retries ~= 0 then redis.call('HSET', record, 'retry_state', run .. ' ' .. micros(retries)) end
  if was_delayed(r) or writes_working and r.state ~= WORKING and LEGAL[r.state][WORKING] then
    write_status(KEYS, r, WORKING, '0', r.working_event)
    notify(KEYS, r)
  end
  save_record(KEYS, r)
end
local indexes = r.turn > 1 and redis.call('HMGET', record, 'turn_messages', 'read_messages') or {}
return {
  'claimed', micros(r.turn), micros(r.attempt), r.request, r.caller, r.ask_count or '0', r.interrupted_state or '', r.scope,
  r.options or '', snapshot(KEYS, r, -1, true), session_of(r), steps_before(r),
  small_journal(KEYS, r) or '', r.journal_origin or '', indexes[1] or '', indexes[2] or '',
  r.claimed_version and r.code_version or '',
}
