-- end_run: the last net: ends a run from outside of it, with the task. any live state → terminal; → CANCELED if a client
-- asked for that. A paused task has no run to end.
-- KEYS  a task's eight
-- ARGV  [1] run  [2] first part of the runner's id: a claimed run is ended only if its runner begins so; '' for a run
--       that nobody has claimed  [3] '1' if its worker was lost: its turn may have another attempt; then only its lease
--       ends  [4…8] the final event
-- gives {'over', version, state}: the run is over, whoever ended it
--       | {'kept'}: it is another's, there is none, or a watcher will begin the next attempt
local r = load(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) then return {'kept'} end
if r.phase == 'running' then
  if ARGV[2] == '' or string.sub(r.runner, 1, #ARGV[2]) ~= ARGV[2] then return {'kept'} end
  if r.asked_to_cancel == '1' then
    write_status(KEYS, r, CANCELED, '0', r.canceled)
  elseif ARGV[3] == '1' and r.attempt < tonumber(r.max_attempts or '1') then
    redis.call('ZADD', r.leases, micros(now()), run_name(r))
    return {'kept'}
  else
    apply_events(KEYS, r, 4)
  end
elseif r.phase == 'queued' then
  apply_events(KEYS, r, 4)
end
if r.phase ~= '' then
  retire(KEYS, r)
  save(KEYS, r)
  wake(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
