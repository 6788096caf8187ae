-- end_by_result: end a run that is delegated to a canvas, or that a worker without this package has executed. any live
-- state → terminal
-- KEYS  keys of the task
-- ARGV  run, '1' if the result only reports that a worker was lost, events, the last of them terminal
-- returns {'over', version, state}: the run has ended, by this call or before
--       | {'illegal', number of the event, state}: nothing was written
--       | {'unchanged'}: the run is not the newest of its task, is claimed or suspended, or a worker with this package was
--       lost before it claimed the run
-- requires: events, notifications, retirement, tasks, time
local run, worker_was_lost, first_event = tonumber(ARGV[1]), ARGV[2] == '1', 3

local r = load_record(KEYS)
if not r or r.run ~= run or r.phase == 'running' or r.phase == 'suspended' then return {'unchanged'} end
if r.phase == 'queued' and worker_was_lost and r.lost_processes then return {'unchanged'} end
if r.phase ~= '' then
  local illegal = first_illegal(r, first_event)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  allow_small_write(KEYS, first_event)
  apply_events(KEYS, r, first_event)
  end_task(KEYS, r)
  save_record(KEYS, r)
  notify(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
