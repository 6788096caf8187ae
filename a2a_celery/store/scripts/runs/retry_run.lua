-- retry_run: a claimed run that Celery retries, and whose worker has not written so, waits for its next attempt. any live
-- state → WORKING; → CANCELED if a client asked for that.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] first part of the runner's id  [3] how often it is retried, with this time  [4] options of the run
--       [5] µs until a watcher publishes it  [6…10] the event; without [4] and further arguments nothing is written
-- returns {'unchanged'}: there is no such run, another process has it, or the retry was written
--       | {'claimed', context, options}: nothing is written | {'released', version, state}
-- requires: dispatch, events, notifications, retirement, runs, states, status, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) then return {'unchanged'} end
local run, retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
local known = run == ARGV[1] and tonumber(retries) or 0
if #ARGV > 3 and known == tonumber(ARGV[3]) and r.phase == 'queued' then -- a repeated call
  return {'released', micros(r.version), micros(r.state)}
end
if r.phase ~= 'running' or string.sub(r.runner, 1, #ARGV[2]) ~= ARGV[2] then return {'unchanged'} end
if known >= tonumber(ARGV[3]) then return {'unchanged'} end
if #ARGV == 3 then return {'claimed', r.context, r.options or ''} end
if first_illegal(r, 6) then return {'unchanged'} end
allow_small_write(KEYS, 6)
apply_events(KEYS, r, 6)
if r.cancel_requested == '1' then
  write_status(KEYS, r, CANCELED, '1', r.canceled_event)
  end_task(KEYS, r)
else
  close_run(r)
  r.phase, r.seq = 'queued', 0
  queue_retry(KEYS, r, ARGV[4], ARGV[3], ARGV[5])
end
save_record(KEYS, r)
notify(KEYS, r)
return {'released', micros(r.version), micros(r.state)}
