-- settle_run: write the last events of a run, end its lease, begin the next waiting turn, and save the session if the
-- task completed or was interrupted. → terminal or interrupted; an interrupted task that a client asked to cancel →
-- CANCELED. A full store accepts small events.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of earlier events of the run, µs until a watcher publishes the next run, number
--       of answers that the agent's `ask` has received or waits for, pauses, µs until a pause ends (0 for never),
--       FAILED event that ends the pause, list of dead letters if a FAILED task leaves a dead letter (''
--       for none), JSON Schema of the answer ('' for none), the session: the arguments of save_session ('' for none),
--       events
-- returns {'settled', version, state, run to publish ('' for none), its options, its task} | {'lost', see
--       missing_events}
--       | {'illegal', number of the event, state} | {'conflict', version}: another run has saved the session since
--       | {'open', state}: the events would leave the task in a state that needs a run
-- requires: child_waits, context_queue, events, keys, notifications, retirement, runs, sessions, states, status, tasks, time, turns
local record = KEYS[1]
local run, token, before, due_us, ask_count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local pauses, pause_us, pause_timeout, dead_letters = ARGV[6], tonumber(ARGV[7]), ARGV[8], ARGV[9]
local answer_schema = ARGV[10]
local session, session_state, first_session, first_event = ARGV[11], ARGV[13], 11, 17

local r = load_record(KEYS)
if r and r.settled then
  local settled_token, version, state, next_run = string.match(r.settled, '^(%S+) (%d+) (%d+) (%S+)$')
  if settled_token == token then return {'settled', version, state, next_run == '-' and '' or next_run, r.options, r.task_id} end
end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if r.phase ~= 'running' then return {'settled', micros(r.version), micros(r.state), '', '', ''} end
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local newer = newer_version(first_session)
if newer then return {'conflict', newer} end
allow_small_write(KEYS, first_event, #session_state)
if r.seq <= before and #ARGV >= first_event then
  local illegal = first_illegal(r, first_event)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  apply_events(KEYS, r, first_event)
  observe_first_event(KEYS, r, before, first_event)
  r.seq = before + (#ARGV - first_event + 1) / 5
end
if INTERRUPTED[r.state] and r.cancel_requested == '1' then -- interrupted before the cancel reached the agent
  write_status(KEYS, r, CANCELED, '1', r.canceled_event)
end
if session ~= '' and (session_state == '' or r.state == COMPLETED or INTERRUPTED[r.state]) then
  save_session(KEYS, r, first_session)
end
local next_task, next_run, next_options = '', '', ''
if r.phase == 'running' and (TERMINAL[r.state] or INTERRUPTED[r.state]) then
  next_task, next_run, next_options = leave_context_queue(KEYS, r, due_us)
end
if TERMINAL[r.state] then
  end_task(KEYS, r, r.state == FAILED and dead_letters ~= '' and dead_letters)
elseif INTERRUPTED[r.state] then
  close_run(r)
  redis.call('HSET', record, 'ask_count', ask_count)
  local waiting = next_waiting(KEYS, r)
  if waiting then
    local message, submitted, request, caller, options = unpack(waiting)
    begin_turn(KEYS, r, message, submitted, request, caller, options, due_us)
    if not is_blocked(KEYS, r) then
      next_task, next_run, next_options = r.task_id, micros(r.run), options
    end
    redis.call('HSET', record, 'settled',
      table.concat({token, micros(r.version), micros(r.state), next_task == r.task_id and next_run or '-'}, ' '))
  else
    resume_parent(KEYS, r)
    redis.call('HSET', record, 'pauses', pauses, 'pause_timeout', pause_timeout)
    if answer_schema ~= '' then redis.call('HSET', record, 'answer_schema', answer_schema) end
    redis.call('ZADD', pauses, pause_us == 0 and '+inf' or micros(r.at + pause_us), task_tag(KEYS))
  end
end
save_record(KEYS, r)
notify(KEYS, r)
if r.phase == 'running' then return {'open', micros(r.state)} end
return {'settled', micros(r.version), micros(r.state), next_run, next_options, next_task}
