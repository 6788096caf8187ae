-- revoke_run: end a run that an operator has revoked. A queued or suspended run: any live state → CANCELED. A claimed
-- run: ask the worker to cancel the run, if the operator terminates it.
-- KEYS  keys of the task
-- ARGV  run, prefix of the channels of workers ('' to leave a claimed run unchanged), CANCELED event
-- returns {'over', version, state}: the run has ended, by this call or an earlier call
--       | {'requested', version}: the worker was asked to cancel the run
--       | {'unchanged'}: the run is claimed and not to be terminated, is delegated to a canvas, or does not exist
-- requires: events, full_store, notifications, retirement, runs, tasks, time
local record = KEYS[1]
local run, channel_prefix, canceled_event, first_event = tonumber(ARGV[1]), ARGV[2], ARGV[6], 3

local r = load_record(KEYS)
if not r or r.run ~= run or r.phase == 'delegated' then return {'unchanged'} end
allow_on_full_store(record)
if r.phase == 'running' then
  if channel_prefix == '' then return {'unchanged'} end
  if r.cancel_requested ~= '1' then redis.call('HSET', record, 'cancel_requested', '1', 'canceled_event', canceled_event) end
  redis.call('HSETNX', record, 'cancel_requested_at', micros(now()))
  redis.call('PUBLISH', channel_prefix .. r.runner, run_name(r))
  return {'requested', micros(r.version)}
end
if r.phase == 'queued' or r.phase == 'suspended' then
  r.cancel_requested = '1'
  apply_events(KEYS, r, first_event)
  end_task(KEYS, r)
  save_record(KEYS, r)
  notify(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
