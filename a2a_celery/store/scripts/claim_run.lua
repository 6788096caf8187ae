-- claim_run: gives a queued run to one worker, once; its lease begins. SUBMITTED → WORKING, if asked.
-- KEYS  a task's eight
-- ARGV  [1] run  [2] token of this claim  [3] runner (worker process)  [4] lease, µs  [5] '1' to write WORKING with it
-- gives {'dropped', reason} | {'claimed', turn, attempt, request, caller, asked, snapshot}
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
  if ARGV[5] == '1' and LEGAL[r.state][WORKING] then
    local at = clock(r)
    write_log(KEYS, r, at, r.working)
    set_status(KEYS, r, WORKING, '0', r.working, at)
    wake(KEYS, r)
  end
  save(KEYS, r)
end
return {'claimed', micros(r.turn), micros(r.attempt), r.request, r.caller, r.asked or '0', snapshot(KEYS, r, -1, true)}
