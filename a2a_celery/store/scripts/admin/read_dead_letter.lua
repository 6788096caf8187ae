-- read_dead_letter: what it takes to run a task again that was lost with its worker.
-- KEYS  a task's ten
-- ARGV  [1] dead letters key
-- returns {'missing'} | {'requeued', the task it became} | {'alive', state} | {'ended', state}: not with its worker
--       | {'dead', agent, scope, request, options, snapshot}
-- requires: keys, snapshot, states, tasks, time
local r = load_record(KEYS)
if not r then return {'missing'} end
if r.requeued_as then return {'requeued', r.requeued_as} end
if not TERMINAL[r.state] then return {'alive', micros(r.state)} end
if not redis.call('ZSCORE', ARGV[1], task_tag(KEYS)) then return {'ended', micros(r.state)} end
return {'dead', r.agent, r.scope, r.request, r.options or '', snapshot(KEYS, r, -1, false)}
