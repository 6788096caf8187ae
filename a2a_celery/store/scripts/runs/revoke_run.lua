-- revoke_run: an operator revokes a run. queued: any live state → CANCELED; running: its worker is asked to cancel it, if it
-- is to be terminated
-- KEYS  a task's ten
-- ARGV  [1] run  [2] prefix of runner channels; '' leaves a claimed run alone  [3…7] the CANCELED event
-- returns {'over', version, state}: the run is over, whoever ended it
--       | {'asked', version}: its worker was asked to cancel it
--       | {'unchanged'}: it is running and not to be terminated, a canvas works for it, or there is no such run
-- requires: events, full_store, notifications, retirement, runs, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase == 'delegated' then return {'unchanged'} end
allow_on_full_store(KEYS[1])
if r.phase == 'running' then
  if ARGV[2] == '' then return {'unchanged'} end
  if r.cancel_requested ~= '1' then redis.call('HSET', KEYS[1], 'cancel_requested', '1', 'canceled_event', ARGV[6]) end
  redis.call('HSETNX', KEYS[1], 'cancel_requested_at', micros(now()))
  redis.call('PUBLISH', ARGV[2] .. r.runner, run_name(r))
  return {'asked', micros(r.version)}
end
if r.phase == 'queued' then
  r.cancel_requested = '1'
  apply_events(KEYS, r, 3)
  end_task(KEYS, r)
  save_record(KEYS, r)
  notify(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
