-- claim_run: gives a queued run to one worker, once; its lease begins. SUBMITTED → WORKING, if asked.
-- KEYS  a task's eight
-- ARGV  [1] run  [2] token of this claim  [3] runner (worker process)  [4] lease, µs  [5] '1' to write WORKING with it
--       [6] how many runs a turn may have, should workers be lost
-- gives {'dropped', reason} | {'claimed', turn, attempt, request, caller, asked, scope, snapshot}
local r = load(KEYS)
if not r then return {'dropped', 'no such task'} end
if TERMINAL[r.state] then return {'dropped', 'the task has ended'} end
if r.run ~= tonumber(ARGV[1]) then return {'dropped', 'outdated: the task is at run ' .. micros(r.run)} end
if r.phase == '' then return {'dropped', 'the run is over'} end
if r.phase == 'running' and r.token ~= ARGV[2] then return {'dropped', 'claimed before'} end
if r.phase == 'queued' then
  r.phase, r.token, r.runner, r.seq = 'running', ARGV[2], ARGV[3], 0
  redis.call('ZADD', r.leases, micros(now() + tonumber(ARGV[4])), run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  redis.call('HSET', KEYS[1], 'max_attempts', ARGV[6])
  if ARGV[5] == '1' and r.state ~= WORKING and LEGAL[r.state][WORKING] then
    write_status(KEYS, r, WORKING, '0', r.working)
    wake(KEYS, r)
  end
  save(KEYS, r)
end
return {
  'claimed', micros(r.turn), micros(r.attempt), r.request, r.caller, r.asked or '0', r.scope, snapshot(KEYS, r, -1, true),
}
