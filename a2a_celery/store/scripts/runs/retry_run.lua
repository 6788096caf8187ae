-- retry_run: queue the next attempt of a claimed run that Celery retries, if its worker has not recorded the retry. any
-- live state → WORKING; → CANCELED if a client requested cancellation. If a message interrupts the run, the turn of
-- the message begins instead.
-- KEYS  keys of the task
-- ARGV  run, prefix of the runner's id, number of retries including this retry. To write, also: options of the run, µs
--       until a watcher publishes the run, event
-- returns {'unchanged'}: the run does not exist, belongs to another process, or the retry was recorded
--       | {'claimed', context, options}: nothing was written | {'released', version, state}
-- requires: dispatch, events, incoming, notifications, runs, tasks, time
local run, runner_prefix, retries, options, delay_us, first_event = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], 6

local r = load_record(KEYS)
if not r or r.run ~= tonumber(run) then return {'unchanged'} end
local retried_run, recorded_retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
recorded_retries = retried_run == run and tonumber(recorded_retries) or 0
if options and recorded_retries == tonumber(retries) and r.phase == 'queued' then -- a repeated call
  return {'released', micros(r.version), micros(r.state)}
end
if r.phase ~= 'running' or string.sub(r.runner, 1, #runner_prefix) ~= runner_prefix then return {'unchanged'} end
if recorded_retries >= tonumber(retries) then return {'unchanged'} end
if not options then return {'claimed', r.context, r.options or ''} end
if first_illegal(r, first_event) then return {'unchanged'} end
allow_small_write(KEYS, first_event)
apply_events(KEYS, r, first_event)
if not end_stopped_run(KEYS, r) then
  close_run(r)
  r.phase, r.seq = 'queued', 0
  queue_retry(KEYS, r, options, retries, delay_us)
end
save_record(KEYS, r)
notify(KEYS, r)
return {'released', micros(r.version), micros(r.state)}
