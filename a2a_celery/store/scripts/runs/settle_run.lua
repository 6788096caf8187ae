-- settle_run: write the last events of a run, end its lease, begin the next waiting turn, and save the session if the
-- task completed or was interrupted. → terminal or interrupted; an interrupted task whose cancellation a client
-- requested → CANCELED; → WORKING if the turn of an unread message follows. Small events are written even to a full
-- store.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of records that the run wrote earlier, µs until a watcher publishes the next
--       run, number of answers that the agent's `ask` has received or waits for, '1' if the agent has refused the
--       answer that began the turn, number of messages that the run has read, pauses, µs until a pause ends (0 for
--       never), FAILED event that ends the pause, list of dead letters ('' if a FAILED task leaves no dead letter), JSON
--       Schema of the answer ('' for none), reminders of the question ('' for none), the session: the arguments of
--       save_session ('' for none), events
-- returns {'settled', version, state, run to publish ('' for none), its options, its task, its agent}
--       | {'lost', see missing_events} | {'illegal', number of the event, state}
--       | {'conflict', version}: another run has saved the session since
--       | {'open', state}: the events would leave the task in a state that needs a run
-- requires: blobs, child_waits, context_queue, events, incoming, keys, notifications, reminders, retirement, runs, sessions, states, status, stored_bytes, tasks, time, turns
local record = KEYS[1]
local run, token, before, due_us, ask_count = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local refuses_answer, read_count, pauses, pause_us = ARGV[6] == '1', tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9])
local pause_timeout, dead_letters, answer_schema, reminders = unpack(ARGV, 10, 13)
local session, session_state, first_session, first_event = ARGV[14], ARGV[16], 14, 20

local r = load_record(KEYS)
local version, state, known_run = settled_before(r, token)
if known_run == '' then return {'settled', version, state, '', '', '', ''} end
if known_run then return {'settled', version, state, known_run, r.options, r.task_id, r.agent} end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if r.phase ~= 'running' then return {'settled', micros(r.version), micros(r.state), '', '', '', ''} end
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local newer = newer_version(first_session)
if newer then return {'conflict', newer} end
allow_small_write(KEYS, first_event, #session_state)
local has_next, replaced_state = has_next_message(KEYS, r, read_count)
if r.seq <= before and #ARGV >= first_event then
  local illegal = first_illegal(r, first_event)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  if has_next then replaced_state = keep_working(r, first_event) end
  add_size(r, adopt_blobs(KEYS, r))
  apply_events(KEYS, r, first_event)
  observe_first_event(KEYS, r, before, first_event)
  r.seq = before + (#ARGV - first_event + 1) / 5
end
local left_state = replaced_state or r.state
local is_interrupted = r.interrupt_requested == micros(r.run) and not TERMINAL[r.state]
if r.cancel_requested == '1' and (INTERRUPTED[r.state] or is_interrupted) then -- the cancellation has not reached the agent
  write_status(KEYS, r, CANCELED, '1', r.canceled_event)
end
if session ~= '' and (session_state == '' or r.state == COMPLETED or INTERRUPTED[r.state] or replaced_state) then
  save_session(KEYS, r, first_session)
end
local next_task, next_run, next_options, next_agent = '', '', '', ''
if has_next and r.phase == 'running' and (replaced_state or INTERRUPTED[r.state] or is_interrupted) then
  if refuses_answer then remove_refused_answer(KEYS, r) end
  remove_read_messages(KEYS, r, read_count, ask_count)
  next_options = begin_turn_of_message(KEYS, r, left_state, ask_count, due_us)
  next_task, next_run, next_agent = r.task_id, micros(r.run), r.agent
  record_settled(KEYS, r, token, next_run)
elseif r.phase == 'running' and (TERMINAL[r.state] or INTERRUPTED[r.state]) then
  next_task, next_run, next_options, next_agent = leave_context_queue(KEYS, r, due_us)
end
if TERMINAL[r.state] then
  end_task(KEYS, r, r.state == FAILED and dead_letters ~= '' and dead_letters)
elseif INTERRUPTED[r.state] then
  close_run(r)
  redis.call('HSET', record, 'ask_count', ask_count)
  if refuses_answer then remove_refused_answer(KEYS, r) end
  remove_read_messages(KEYS, r, read_count, ask_count)
  local waiting = next_waiting(KEYS, r)
  if waiting then
    local message, submitted, request, caller, options = unpack(waiting)
    begin_turn(KEYS, r, message, submitted, request, caller, options, due_us)
    if not is_blocked(KEYS, r) then
      next_task, next_run, next_options, next_agent = r.task_id, micros(r.run), options, r.agent
    end
  else
    resume_parent(KEYS, r)
    redis.call('HSET', record, 'pauses', pauses, 'pause_timeout', pause_timeout)
    if answer_schema ~= '' then redis.call('HSET', record, 'answer_schema', answer_schema) end
    redis.call('ZADD', pauses, pause_us == 0 and '+inf' or micros(now() + pause_us), task_tag(KEYS))
    schedule_reminders(KEYS, r, reminders)
  end
  record_settled(KEYS, r, token, next_task == r.task_id and next_run or '')
end
save_record(KEYS, r)
notify(KEYS, r)
if r.phase == 'running' then return {'open', micros(r.state)} end
return {'settled', micros(r.version), micros(r.state), next_run, next_options, next_task, next_agent}
