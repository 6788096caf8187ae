-- revoke_run: end a run that an operator has revoked. A queued or suspended run: any live state → CANCELED. A claimed
-- run: ask the worker to cancel the run, if the operator terminates it.
-- returns {'over', version, state}: the run has ended, by this call or an earlier call
--       | {'requested', version}: the worker was asked to cancel the run
--       | {'unchanged'}: the run is claimed and not to be terminated, is delegated to a canvas, or does not exist
-- requires: events, full_store, notifications, retirement, runs, tasks, time

local r = load_record(keys)
if not r or r.run ~= run or r.phase == 'delegated' then return {'unchanged'} end
allow_on_full_store(keys.record)
if r.phase == 'running' then
  if not terminate then return {'unchanged'} end
  if r.cancel_requested ~= '1' then redis.call('HSET', keys.record, 'cancel_requested', '1', 'canceled_event', event.content) end
  redis.call('HSETNX', keys.record, 'cancel_requested_at', micros(now()))
  redis.call('PUBLISH', runners .. r.runner, run_name(r))
  return {'requested', micros(r.version)}
end
if r.phase == 'queued' or r.phase == 'suspended' then
  r.cancel_requested = '1'
  apply_events(keys, r, {event})
  end_task(keys, r)
  save_record(keys, r)
  notify(keys, r)
end
return {'over', micros(r.version), micros(r.state)}
