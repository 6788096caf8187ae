-- claim_run: gives a queued run to one worker, once; its lease begins. SUBMITTED → WORKING, if asked.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of this claim  [3] runner (worker process)  [4] lease, µs  [5] '1' to write WORKING with it
--       [6] how many runs a turn may have, should workers be lost  [7] how often Celery retried this run before
--       [8] WORKING event of that retry, if it is known  [9] its metadata, packed  [10] what sessions' keys begin with, ''
--       for an agent without  [11] the worker's name at Celery's listeners, '' where nobody listens
-- gives {'dropped', reason} | {'behind', context}: call again with the event of the retry
--       | {'claimed', turn, attempt, request, caller, asked, paused_in, scope, options, snapshot, session}
--       session is {} or version, state, '1' if a run of this very turn saved it
local function session_of(r)
  if ARGV[10] == '' then return {} end
  local session = ARGV[10] .. r.scope .. ':' .. quoted(r.context)
  local saved = redis.call('HMGET', session, 'version', 'state', 'task', 'turn')
  if not saved[1] then return {} end
  keep_session(r, session) -- the run may be lost: the next attempt shall find it too
  local mine = saved[3] == r.task_id or
    string.find(' ' .. (r.requeued_from or ''), ' ' .. quoted(saved[3]) .. ' ', 1, true)
  return {saved[1], saved[2], mine and saved[4] == micros(r.turn) and '1' or '0'}
end

local r = load(KEYS)
if not r then return {'dropped', 'no such task'} end
if TERMINAL[r.state] then return {'dropped', 'the task has ended'} end
if r.run ~= tonumber(ARGV[1]) then return {'dropped', 'outdated: the task is at run ' .. micros(r.run)} end
if r.phase ~= 'queued' and r.phase ~= 'running' then return {'dropped', 'the run is over'} end
local run, retries = string.match(r.retried or '', '^(%d+) (%d+)$')
local known = run == ARGV[1] and tonumber(retries) or 0
if r.phase == 'queued' and tonumber(ARGV[7]) < known then -- a copy of a message that was begun before the retry
  return {'dropped', 'outdated: the run is at retry ' .. micros(known)}
end
if r.phase == 'running' and r.token ~= ARGV[2] then
  if tonumber(ARGV[7]) <= known then return {'dropped', 'claimed before'} end
  if ARGV[8] == '' then return {'behind', r.context} end
  -- Celery sends a retry before its task can say so: whoever claimed the run has no more to say
  write_status(KEYS, r, WORKING, '0', ARGV[8])
  merge_metadata(KEYS, ARGV[9])
  wake(KEYS, r)
  close_run(r)
  r.phase = 'queued'
end
if r.phase == 'queued' then
  if stands_behind(KEYS, r) then return {'dropped', 'another run of its context comes first'} end
  r.phase, r.token, r.runner, r.seq = 'running', ARGV[2], ARGV[3], 0
  redis.call('ZADD', r.leases, micros(now() + tonumber(ARGV[4])), run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  leave_queue(r)
  took(r, 'queue', math.max(r.at, tonumber(r.begins_at or 0), r.row and tonumber(r.turn_at or 0) or 0))
  redis.call('HSET', KEYS[1], 'max_attempts', micros(tonumber(ARGV[6]) + tonumber(r.spared or '0')),
    'claimed_at', micros(now()), 'worker', ARGV[11])
  if ARGV[7] ~= '0' then redis.call('HSET', KEYS[1], 'retried', ARGV[1] .. ' ' .. ARGV[7]) end
  if ARGV[5] == '1' and r.state ~= WORKING and LEGAL[r.state][WORKING] then
    write_status(KEYS, r, WORKING, '0', r.working)
    wake(KEYS, r)
  end
  save(KEYS, r)
end
return {
  'claimed', micros(r.turn), micros(r.attempt), r.request, r.caller, r.asked or '0', r.paused_in or '', r.scope,
  r.options or '', snapshot(KEYS, r, -1, true), session_of(r),
}
