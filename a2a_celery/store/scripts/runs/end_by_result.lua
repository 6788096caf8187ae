-- end_by_result: the end of a run that no worker of ours runs: it was handed to a canvas, or a worker without this
-- package has done it. any live state → terminal
-- KEYS  a task's ten
-- ARGV  [1] run  [2] '1' if all that is known is that a worker was lost  [3…] events, the last of them terminal
-- returns {'over', version, state}: the run is over, whoever ended it
--       | {'unchanged'}: there is no such run, or it is claimed, or a worker of ours was lost before it had begun it
-- requires: events, notifications, retirement, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase == 'running' then return {'unchanged'} end
if r.phase == 'queued' and ARGV[2] == '1' and r.lost_processes then return {'unchanged'} end
if (r.phase == 'delegated' or r.phase == 'queued') and not first_illegal(r, 3) then
  allow_small_write(KEYS, 3)
  apply_events(KEYS, r, 3)
  end_task(KEYS, r)
  save_record(KEYS, r)
  notify(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
