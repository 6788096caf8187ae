-- settle_run: write the last events of a run, end its lease, and begin the next waiting turn. → terminal or interrupted;
-- an interrupted task whose cancellation a client requested → CANCELED; → WORKING if the turn of an unread message
-- follows. Small events are written even to a full store.
-- returns {'settled', version, state, run to publish ('' for none), its options, its task}
--       | {'lost', see missing_events} | {'illegal', number of the event, state}
--       | {'open', state}: the events would leave the task in a state that needs a run
-- requires: blobs, context_queue, events, incoming, keys, notifications, publication, retirement, runs, states, status, stored_bytes, task_waits, tasks, time, turns

local missing_blob = missing_blobs(keys)
if missing_blob then return missing_blob end
local r = load_record(keys)
local version, state, known_run = settled_before(r, token)
if known_run == '' then return {'settled', version, state, '', '', ''} end
if known_run then return {'settled', version, state, known_run, r.options or '', r.task_id} end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if r.phase ~= 'running' then return {'settled', micros(r.version), micros(r.state), '', '', ''} end
local missing = missing_events(keys, r, written_count)
if missing then return {'lost', missing} end
r.section_bytes = 0
local refusal = check_sections(keys, r)
if refusal then return refusal end
allow_small_write(keys, events, r.section_bytes)
local has_next, replaced_state = has_next_message(keys, r, read_count)
if r.seq <= written_count and events[1] then
  local illegal = first_illegal(r, events)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  if has_next then replaced_state = keep_working(r, events) end
  add_size(r, keep_blobs(keys, r))
  apply_events(keys, r, events)
  observe_first_event(keys, r, written_count, events)
  r.seq = written_count + #events
end
local left_state = replaced_state or r.state
local is_interrupted = r.interrupt_requested == micros(r.run) and not TERMINAL[r.state]
if r.cancel_requested == '1' and (INTERRUPTED[r.state] or is_interrupted) then -- the cancellation has not reached the agent
  write_status(keys, r, CANCELED, '1', r.canceled_event)
end
ended_sections(keys, r, r.state == COMPLETED or INTERRUPTED[r.state] or replaced_state)
local next_task, next_run, next_options = '', '', ''
if has_next and r.phase == 'running' and (replaced_state or INTERRUPTED[r.state] or is_interrupted) then
  if refuses_answer then remove_refused_answer(keys, r) end
  remove_read_messages(keys, r, read_count, ask_count)
  next_options = begin_turn_of_message(keys, r, left_state, ask_count, FIRST_PUBLISH_GRACE_US)
  next_task, next_run = r.task_id, micros(r.run)
  record_settled(keys, r, token, next_run)
elseif r.phase == 'running' and (TERMINAL[r.state] or INTERRUPTED[r.state]) then
  next_task, next_run, next_options = leave_context_queue(keys, r, FIRST_PUBLISH_GRACE_US)
end
if TERMINAL[r.state] then
  end_task(keys, r, is_resubmittable and r.state == FAILED)
elseif INTERRUPTED[r.state] then
  close_run(r)
  redis.call('HSET', keys.record, 'ask_count', ask_count)
  if refuses_answer then remove_refused_answer(keys, r) end
  remove_read_messages(keys, r, read_count, ask_count)
  local waiting = next_waiting(keys, r)
  if waiting then
    local message, submitted, request, caller, options = unpack(waiting)
    begin_turn(keys, r, message, submitted, request, caller, options, FIRST_PUBLISH_GRACE_US)
    if not is_blocked(keys, r) then
      next_task, next_run, next_options = r.task_id, micros(r.run), options
    end
  else
    resume_waiting_run(keys, r)
    redis.call('HSET', keys.record, 'pauses', pauses, 'pause_timeout', pause_timeout and pause_timeout.content or '')
    redis.call('ZADD', pauses, pause_us == 0 and '+inf' or micros(now() + pause_us), task_tag(keys))
    paused_sections(keys, r)
  end
  record_settled(keys, r, token, next_task == r.task_id and next_run or '')
end
save_record(keys, r)
notify(keys, r)
if r.phase == 'running' then return {'open', micros(r.state)} end
return {'settled', micros(r.version), micros(r.state), next_run, next_options, next_task}
