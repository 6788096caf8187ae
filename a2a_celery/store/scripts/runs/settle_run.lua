-- settle_run: the last events of a run, the end of its lease, the next waiting turn, and what its session then says if it
-- completed or paused. → terminal, or interrupted; an interrupted task that a client asked to cancel → CANCELED. A full store
-- takes small ones.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before
--       [4] µs until the watcher publishes the next run  [5] answers that the agent's `ask` waits for, this one too
--       [6] pauses key  [7] µs until a pause ends, 0 for never  [8] the FAILED event that ends it  [9…14] the session:
--       what save_session takes, [9] '' for none  [15…] events
-- returns {'settled', version, state, run to be published ('' for none), its options, its task}
--       | {'lost', see missing_events}
--       | {'illegal', number of the event, state} | {'conflict', version}: another run has saved the session since
--       | {'open', state}: the task would be left in a state that nobody moves it on from
-- requires: context_queue, events, keys, notifications, retirement, runs, sessions, states, status, tasks, time, turns
local r = load_record(KEYS)
if r and r.settled then
  local token, version, state, begun = string.match(r.settled, '^(%S+) (%d+) (%d+) (%S+)$')
  if token == ARGV[2] then return {'settled', version, state, begun == '-' and '' or begun, r.options, r.task_id} end
end
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
if r.phase ~= 'running' then return {'settled', micros(r.version), micros(r.state), '', '', ''} end
local before = tonumber(ARGV[3])
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local since = newer_version(9)
if since then return {'conflict', since} end
allow_small_write(KEYS, 15, #ARGV[11])
if r.seq <= before and #ARGV >= 15 then
  local illegal = first_illegal(r, 15)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  apply_events(KEYS, r, 15)
  observe_first_event(KEYS, r, before, 15)
  r.seq = before + (#ARGV - 14) / 5
end
if INTERRUPTED[r.state] and r.cancel_requested == '1' then -- it paused before it heard of the cancel
  write_status(KEYS, r, CANCELED, '1', r.canceled_event)
end
if ARGV[9] ~= '' and (ARGV[11] == '' or r.state == COMPLETED or INTERRUPTED[r.state]) then save_session(KEYS, r, 9) end
local next_task, next_run, next_options = '', '', ''
if r.phase == 'running' and (TERMINAL[r.state] or INTERRUPTED[r.state]) then
  next_task, next_run, next_options = leave_context_queue(KEYS, r, tonumber(ARGV[4]))
end
if TERMINAL[r.state] then
  end_task(KEYS, r)
elseif INTERRUPTED[r.state] then
  close_run(r)
  redis.call('HSET', KEYS[1], 'ask_count', ARGV[5])
  local waiting = next_waiting(KEYS, r)
  if waiting then
    local message, submitted, request, caller, options = unpack(waiting)
    begin_turn(KEYS, r, message, submitted, request, caller, options, tonumber(ARGV[4]))
    if not is_blocked(KEYS, r) then
      next_task, next_run, next_options = r.task_id, micros(r.run), options
    end
    redis.call('HSET', KEYS[1], 'settled',
      table.concat({ARGV[2], micros(r.version), micros(r.state), next_task == r.task_id and next_run or '-'}, ' '))
  else
    redis.call('HSET', KEYS[1], 'pauses', ARGV[6], 'pause_timeout', ARGV[8])
    redis.call('ZADD', ARGV[6], ARGV[7] == '0' and '+inf' or micros(r.at + tonumber(ARGV[7])), task_tag(KEYS))
  end
end
save_record(KEYS, r)
notify(KEYS, r)
if r.phase == 'running' then return {'open', micros(r.state)} end
return {'settled', micros(r.version), micros(r.state), next_run, next_options, next_task}
