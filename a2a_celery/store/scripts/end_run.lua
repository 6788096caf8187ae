-- end_run: the last net: ends a run from outside of it, with the task. any live state → terminal; → CANCELED if a client
-- asked for that. A paused task has no run to end. A task that is FAILED because a worker was lost leaves a dead letter.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] first part of the runner's id: a claimed run is ended only if its runner begins so; '' for a run
--       that nobody has claimed  [3] '1' if its worker was lost: its turn may have another attempt; then only its lease
--       ends; and a run that it had not claimed yet is published again  [4] dead letters key  [5] how many processes may
--       be lost before one has claimed it  [6…10] the final event
-- gives {'over', version, state}: the run is over, whoever ended it
--       | {'kept'}: it is another's, there is none, or a watcher will begin the next attempt, or publish it again

-- How many processes were lost that had this run's message, and had not claimed it. Each counts once.
local function fell_with(keys, r, process)
  local fell = r.fell or ''
  if not string.find(' ' .. fell, ' ' .. process .. ' ', 1, true) then fell = fell .. process .. ' ' end
  redis.call('HSET', keys[1], 'fell', fell)
  return select(2, string.gsub(fell, ' ', ''))
end

local r = load(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase == 'handed' then return {'kept'} end
if r.phase == 'running' then
  if ARGV[2] == '' or string.sub(r.runner, 1, #ARGV[2]) ~= ARGV[2] then return {'kept'} end
  if r.asked_to_cancel == '1' then
    write_status(KEYS, r, CANCELED, '0', r.canceled)
  elseif ARGV[3] == '1' and r.attempt < tonumber(r.max_attempts or '1') then
    redis.call('ZADD', r.leases, micros(now()), run_name(r))
    return {'kept'}
  else
    apply_events(KEYS, r, 6)
  end
elseif r.phase == 'queued' then
  if ARGV[3] == '1' and fell_with(KEYS, r, ARGV[2]) < tonumber(ARGV[5]) then
    if not stands_behind(KEYS, r) then redis.call('ZADD', r.dispatch, micros(now()), run_name(r)) end
    return {'kept'}
  end
  apply_events(KEYS, r, 6)
end
if r.phase ~= '' then
  retire(KEYS, r, ARGV[3] == '1' and r.state == FAILED and ARGV[4])
  if ARGV[3] == '1' then tally(r, 'lost', r.state == FAILED and 'failed' or 'canceled') end
  save(KEYS, r)
  wake(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
