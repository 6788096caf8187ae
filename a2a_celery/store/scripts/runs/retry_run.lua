-- retry_run: queue the next attempt of a claimed run that Celery retries, if its worker has not recorded the retry. any
-- live state → WORKING; → CANCELED if a client requested cancellation. If a message interrupts the run, the turn of
-- the message begins instead.
-- returns {'unchanged'}: the run does not exist, belongs to another process, or the retry was recorded
--       | {'claimed', context, options}: nothing was written | {'released', version, state}
-- requires: dispatch, events, incoming, notifications, runs, tasks, time

local r = load_record(keys)
if not r or r.run ~= run then return {'unchanged'} end
local retried_run, recorded_retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
recorded_retries = tonumber(retried_run) == run and tonumber(recorded_retries) or 0
if attempt and recorded_retries == retries and r.phase == 'queued' then -- a repeated call
  return {'released', micros(r.version), micros(r.state)}
end
if r.phase ~= 'running' or string.sub(r.runner, 1, #runner) ~= runner then return {'unchanged'} end
if recorded_retries >= retries then return {'unchanged'} end
if not attempt then return {'claimed', r.context, r.options or ''} end
if first_illegal(r, {attempt.event}) then return {'unchanged'} end
allow_small_write(keys, {attempt.event})
apply_events(keys, r, {attempt.event})
if not end_stopped_run(keys, r) then
  close_run(r)
  r.phase, r.seq = 'queued', 0
  queue_retry(keys, r, attempt.options, retries, attempt.delay_us)
end
save_record(keys, r)
notify(keys, r)
return {'released', micros(r.version), micros(r.state)}
