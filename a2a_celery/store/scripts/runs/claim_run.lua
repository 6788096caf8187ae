-- claim_run: gives a queued run to one worker, once; its lease begins. SUBMITTED → WORKING, if asked. WORKING → WORKING, if the
-- run is a retry that waited.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of this claim  [3] runner (worker process)  [4] lease, µs  [5] '1' to write WORKING with it
--       [6] how many runs a turn may have, should workers be lost  [7] how often Celery retried this run before
--       [8] WORKING event of that retry, if it is known  [9] its metadata, packed  [10] what sessions' keys begin with, ''
--       for an agent without  [11] the worker's name at Celery's listeners, '' where nobody listens
-- returns {'dropped', reason} | {'unrecorded', context}: call again with the event of the retry
--       | {'claimed', turn, attempt, request, caller, asked, interrupted_state, scope, options, snapshot, session, steps}
--       session is {} or version, state, '1' if a run of this very turn saved it
--       steps are the newest of the task; for its first run, before any retry, those of the session
-- requires: context_queue, keys, metrics, notifications, own_metadata, runs, sessions, snapshot, states, status, tasks, time, transitions
local function session_of(r)
  if ARGV[10] == '' then return {} end
  local session = ARGV[10] .. r.scope .. ':' .. quoted(r.context)
  local saved = redis.call('HMGET', session, 'version', 'state', 'task', 'turn')
  if not saved[1] then return {} end
  renew_session(r, session) -- the run may be lost: the next attempt shall find it too
  local mine = saved[3] == r.task_id or
    string.find(' ' .. (r.requeued_from or ''), ' ' .. quoted(saved[3]) .. ' ', 1, true)
  return {saved[1], saved[2], mine and saved[4] == micros(r.turn) and '1' or '0'}
end

local function steps_before(r)
  if r.turn > 1 or r.attempt > 1 or ARGV[7] ~= '0' then return redis.call('LRANGE', KEYS[10], -SAVED_STEPS, -1) end
  if ARGV[10] == '' then return {} end
  local saved = redis.call('HGET', ARGV[10] .. r.scope .. ':' .. quoted(r.context), 'execution')
  local steps = {}
  for step in string.gmatch(saved or '', '[^\n]+') do steps[#steps + 1] = step end
  return steps
end

local r = load_record(KEYS)
if not r then return {'dropped', 'no such task'} end
if TERMINAL[r.state] then return {'dropped', 'the task has ended'} end
if r.run ~= tonumber(ARGV[1]) then return {'dropped', 'outdated: the task is at run ' .. micros(r.run)} end
if r.phase ~= 'queued' and r.phase ~= 'running' then return {'dropped', 'the run is over'} end
local run, retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
local known = run == ARGV[1] and tonumber(retries) or 0
if r.phase == 'queued' and tonumber(ARGV[7]) < known then -- a copy of a message that was begun before the retry
  return {'dropped', 'outdated: the run is at retry ' .. micros(known)}
end
if r.phase == 'running' and r.token ~= ARGV[2] then
  if tonumber(ARGV[7]) <= known then return {'dropped', 'claimed before'} end
  if ARGV[8] == '' then return {'unrecorded', r.context} end
  -- Celery sends a retry before its task can say so: whoever claimed the run has no more to say
  write_status(KEYS, r, WORKING, '0', ARGV[8])
  merge_metadata(KEYS, ARGV[9])
  notify(KEYS, r)
  close_run(r)
  r.phase = 'queued'
  count_metric(r, 'retried', 'runs')
end
if r.phase == 'queued' then
  if is_blocked(KEYS, r) then return {'dropped', 'another run of its context comes first'} end
  r.phase, r.token, r.runner, r.seq = 'running', ARGV[2], ARGV[3], 0
  redis.call('ZADD', r.leases, micros(now() + tonumber(ARGV[4])), run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  leave_queue(r)
  observe_duration(r, 'queue', math.max(r.at, tonumber(r.begins_at or 0), r.context_queue and tonumber(r.unblocked_at or 0) or 0))
  redis.call('HSET', KEYS[1], 'max_attempts', micros(tonumber(ARGV[6]) + tonumber(r.uncounted_attempts or '0')),
    'claimed_at', micros(now()), 'worker', ARGV[11])
  if ARGV[7] ~= '0' then redis.call('HSET', KEYS[1], 'retry_state', ARGV[1] .. ' ' .. ARGV[7]) end
  local waited = r.state == WORKING and redis.call('HEXISTS', KEYS[6], NEXT_ATTEMPT_AT) == 1
  if waited or ARGV[5] == '1' and r.state ~= WORKING and LEGAL[r.state][WORKING] then
    write_status(KEYS, r, WORKING, '0', r.working_event)
    notify(KEYS, r)
  end
  save_record(KEYS, r)
end
return {
  'claimed', micros(r.turn), micros(r.attempt), r.request, r.caller, r.ask_count or '0', r.interrupted_state or '', r.scope,
  r.options or '', snapshot(KEYS, r, -1, true), session_of(r), steps_before(r),
}
