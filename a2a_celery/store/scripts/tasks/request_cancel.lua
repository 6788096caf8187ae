-- request_cancel: end a task without a claimed run, or ask the worker of the run to cancel it. any live state →
-- CANCELED
-- returns {'missing'} | {'ended', state} | {'requested', version}: the worker was asked to cancel the run
--       | {'canceled', run that was queued ('' for none), version, canvas to which the run was delegated ('' for none)}
-- requires: events, full_store, notifications, retirement, runs, states, tasks, time

local r = load_record(keys)
if not r or r.scope ~= scope then return {'missing'} end
local known_nonce, known_run, known_canvas = string.match(r.nonce, '^canceled (%x+) (%d*) (.*)$')
if known_nonce == nonce then return {'canceled', known_run, micros(r.version), known_canvas} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
allow_on_full_store(keys.record)
if r.phase == 'running' then
  if r.cancel_requested ~= '1' then redis.call('HSET', keys.record, 'cancel_requested', '1', 'canceled_event', event.content) end
  redis.call('HSETNX', keys.record, 'cancel_requested_at', micros(now()))
  redis.call('PUBLISH', runners .. r.runner, run_name(r))
  return {'requested', micros(r.version)}
end
local run = r.phase == 'queued' and micros(r.run) or ''
local canvas = r.phase == 'delegated' and r.canvas or ''
r.cancel_requested, r.nonce = '1', 'canceled ' .. nonce .. ' ' .. run .. ' ' .. canvas
apply_events(keys, r, {event})
end_task(keys, r)
save_record(keys, r)
notify(keys, r)
return {'canceled', run, micros(r.version), canvas}
