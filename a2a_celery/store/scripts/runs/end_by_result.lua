-- end_by_result: end a run that is delegated to a canvas, or that a worker without this package has executed. any live
-- state → terminal
-- returns {'over', version, state}: the run has ended, by this call or before
--       | {'illegal', number of the event, state}: nothing was written
--       | {'unchanged'}: the run is not the newest of its task, is claimed or suspended, or a worker with this package was
--       lost before it claimed the run
-- requires: events, metrics, notifications, retirement, states, tasks, time

local r = load_record(keys)
if not r or r.run ~= run or r.phase == 'running' or r.phase == 'suspended' then return {'unchanged'} end
if r.phase == 'queued' and lost and r.lost_processes then return {'unchanged'} end
if r.phase ~= '' then
  local illegal = first_illegal(r, events)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  allow_small_write(keys, events)
  apply_events(keys, r, events)
  local was_lost = is_resubmittable and r.phase == 'queued' and r.state == FAILED
  end_task(keys, r, was_lost)
  if was_lost then count_metric(r, 'lost', 'failed') end
  save_record(keys, r)
  notify(keys, r)
end
return {'over', micros(r.version), micros(r.state)}
