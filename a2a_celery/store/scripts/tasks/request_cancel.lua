-- request_cancel: ends a task that nobody runs; tells the runner of any other. any live state → CANCELED
-- KEYS  a task's ten
-- ARGV  [1] scope  [2] prefix of runner channels  [3] nonce  [4…8] the CANCELED event
-- returns {'missing'} | {'ended', state} | {'asked', '', version}
--       | {'canceled', run that was queued ('' for none), version, canvas that worked for it ('' for none)}
-- requires: events, full_store, notifications, retirement, runs, states, tasks, time
local r = load_record(KEYS)
if not r or r.scope ~= ARGV[1] then return {'missing'} end
local known, run, worked = string.match(r.nonce, '^canceled (%x+) (%d*) (.*)$')
if known == ARGV[3] then return {'canceled', run, micros(r.version), worked} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
allow_on_full_store(KEYS[1])
if r.phase == 'running' then
  if r.cancel_requested ~= '1' then redis.call('HSET', KEYS[1], 'cancel_requested', '1', 'canceled_event', ARGV[7]) end
  redis.call('HSETNX', KEYS[1], 'cancel_requested_at', micros(now()))
  redis.call('PUBLISH', ARGV[2] .. r.runner, run_name(r))
  return {'asked', '', micros(r.version)}
end
local queued = r.phase == 'queued' and micros(r.run) or ''
local canvas = r.phase == 'delegated' and r.canvas or ''
r.cancel_requested, r.nonce = '1', 'canceled ' .. ARGV[3] .. ' ' .. queued .. ' ' .. canvas
apply_events(KEYS, r, 4)
end_task(KEYS, r)
save_record(KEYS, r)
notify(KEYS, r)
return {'canceled', queued, micros(r.version), canvas}
