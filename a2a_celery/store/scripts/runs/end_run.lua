-- end_run: the last net: ends a run from outside of it, with the task. any live state → terminal; → CANCELED if a client
-- asked for that. A paused task has no run to end. A task that is FAILED because a worker was lost leaves a dead letter.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] first part of the runner's id: a claimed run is ended only if its runner begins so; '' for a run
--       that nobody has claimed  [3] '1' if its worker was lost: its turn may have another attempt; then only its lease
--       ends; and a run that it had not claimed yet is published again  [4] dead letters key  [5] how many processes may
--       be lost before one has claimed it  [6] how often Celery retried the run before its message was sent, '' if no
--       message is the cause  [7…11] the final event
-- returns {'over', version, state}: the run is over, whoever ended it
--       | {'unchanged'}: it is another's or at a later retry, there is none, or a watcher will begin the next attempt, or publish it again
-- requires: context_queue, events, full_store, metrics, notifications, retirement, runs, states, status, tasks, time

-- How many processes were lost that had this run's message, and had not claimed it. Each counts once.
local function count_lost_process(keys, r, process)
  local fell = r.lost_processes or ''
  if not string.find(' ' .. fell, ' ' .. process .. ' ', 1, true) then fell = fell .. process .. ' ' end
  redis.call('HSET', keys[1], 'lost_processes', fell)
  return select(2, string.gsub(fell, ' ', ''))
end

local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase == 'delegated' then return {'unchanged'} end
local run, retries = string.match(r.retry_state or '', '^(%d+) (%d+)$')
if ARGV[6] ~= '' and run == ARGV[1] and tonumber(ARGV[6]) < tonumber(retries) then return {'unchanged'} end
allow_on_full_store(KEYS[1])
if r.phase == 'running' then
  if ARGV[2] == '' or string.sub(r.runner, 1, #ARGV[2]) ~= ARGV[2] then return {'unchanged'} end
  if r.cancel_requested == '1' then
    write_status(KEYS, r, CANCELED, '1', r.canceled_event)
  elseif ARGV[3] == '1' and r.attempt < tonumber(r.max_attempts or '1') then
    redis.call('ZADD', r.leases, micros(now()), run_name(r))
    return {'unchanged'}
  else
    apply_events(KEYS, r, 7)
  end
elseif r.phase == 'queued' then
  if ARGV[3] == '1' and count_lost_process(KEYS, r, ARGV[2]) < tonumber(ARGV[5]) then
    if not is_blocked(KEYS, r) then redis.call('ZADD', r.dispatch, micros(now()), run_name(r)) end
    return {'unchanged'}
  end
  apply_events(KEYS, r, 7)
end
if r.phase ~= '' then
  end_task(KEYS, r, ARGV[3] == '1' and r.state == FAILED and ARGV[4])
  if ARGV[3] == '1' then count_metric(r, 'lost', r.state == FAILED and 'failed' or 'canceled') end
  save_record(KEYS, r)
  notify(KEYS, r)
end
return {'over', micros(r.version), micros(r.state)}
