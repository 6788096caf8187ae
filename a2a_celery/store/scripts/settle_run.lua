-- settle_run: the last events of a run, the end of its lease, the next waiting turn, and what its session then says if it
-- completed or paused. → terminal, or interrupted; an interrupted task that a client asked to cancel → CANCELED
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before
--       [4] µs until the watcher publishes the next run  [5] answers that the agent's `ask` waits for, this one too
--       [6] pauses key  [7] µs until a pause ends, 0 for never  [8] the FAILED event that ends it  [9…14] the session:
--       what save_session takes, [9] '' for none  [15…] events
-- gives {'settled', version, state, run to be published ('' for none), its options, its task}
--       | {'lost', see missing_events}
--       | {'illegal', number of the event, state} | {'conflict', version}: another run has saved the session since
--       | {'open', state}: the task would be left in a state that nobody moves it on from
local r = load(KEYS)
if r and r.settled then
  local token, version, state, begun = string.match(r.settled, '^(%S+) (%d+) (%d+) (%S+)$')
  if token == ARGV[2] then return {'settled', version, state, begun == '-' and '' or begun, r.options, r.task_id} end
end
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
if r.phase ~= 'running' then return {'settled', micros(r.version), micros(r.state), '', '', ''} end
local before = tonumber(ARGV[3])
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local since = saved_since(9)
if since then return {'conflict', since} end
if r.seq <= before and #ARGV >= 15 then
  local illegal = first_illegal(r, 15)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  apply_events(KEYS, r, 15)
  took_first(KEYS, r, before, 15)
  r.seq = before + (#ARGV - 14) / 5
end
if INTERRUPTED[r.state] and r.asked_to_cancel == '1' then -- it paused before it heard of the cancel
  write_status(KEYS, r, CANCELED, '0', r.canceled)
end
if ARGV[9] ~= '' and (ARGV[11] == '' or r.state == COMPLETED or INTERRUPTED[r.state]) then save_session(r, 9) end
local next_task, next_run, next_options = '', '', ''
if r.phase == 'running' and (TERMINAL[r.state] or INTERRUPTED[r.state]) then
  next_task, next_run, next_options = leave_row(KEYS, r, tonumber(ARGV[4]))
end
if TERMINAL[r.state] then
  retire(KEYS, r)
elseif INTERRUPTED[r.state] then
  close_run(r)
  redis.call('HSET', KEYS[1], 'asked', ARGV[5])
  local waiting = next_waiting(KEYS)
  if waiting then
    local message, submitted, request, caller, options = unpack(waiting)
    begin_turn(KEYS, r, message, submitted, request, caller, options, tonumber(ARGV[4]))
    if not stands_behind(KEYS, r) then
      next_task, next_run, next_options = r.task_id, micros(r.run), options
    end
    redis.call('HSET', KEYS[1], 'settled',
      table.concat({ARGV[2], micros(r.version), micros(r.state), next_task == r.task_id and next_run or '-'}, ' '))
  else
    redis.call('HSET', KEYS[1], 'pauses', ARGV[6], 'unanswered', ARGV[8])
    redis.call('ZADD', ARGV[6], ARGV[7] == '0' and '+inf' or micros(r.at + tonumber(ARGV[7])), tag(KEYS))
  end
end
save(KEYS, r)
wake(KEYS, r)
if r.phase == 'running' then return {'open', micros(r.state)} end
return {'settled', micros(r.version), micros(r.state), next_run, next_options, next_task}
