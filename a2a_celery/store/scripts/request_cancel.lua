-- request_cancel: ends a task that nobody runs; tells the runner of any other. any live state → CANCELED
-- KEYS  a task's ten
-- ARGV  [1] scope  [2] prefix of runner channels  [3] nonce  [4…8] the CANCELED event
-- gives {'missing'} | {'ended', state} | {'asked', '', version}
--       | {'canceled', run that was queued ('' for none), version, canvas that worked for it ('' for none)}
local r = load(KEYS)
if not r or r.scope ~= ARGV[1] then return {'missing'} end
local known, run, worked = string.match(r.nonce, '^canceled (%x+) (%d*) (.*)$')
if known == ARGV[3] then return {'canceled', run, micros(r.version), worked} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if r.phase == 'running' then
  redis.call('HSET', KEYS[1], 'asked_to_cancel', '1', 'canceled', ARGV[7])
  redis.call('HSETNX', KEYS[1], 'cancel_asked_at', micros(now()))
  redis.call('PUBLISH', ARGV[2] .. r.runner, run_name(r))
  return {'asked', '', micros(r.version)}
end
local queued = r.phase == 'queued' and micros(r.run) or ''
local canvas = r.phase == 'handed' and r.canvas or ''
r.asked_to_cancel, r.nonce = '1', 'canceled ' .. ARGV[3] .. ' ' .. queued .. ' ' .. canvas
apply_events(KEYS, r, 4)
retire(KEYS, r)
save(KEYS, r)
wake(KEYS, r)
return {'canceled', queued, micros(r.version), canvas}
