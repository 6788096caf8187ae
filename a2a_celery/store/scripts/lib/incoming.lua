-- requires: cleanup, context_queue, retirement, runs, states, status, tasks, time, turns

-- A message to a task with an open run waits in the list `turns`. Agent.on_message determines its effect:
--   queue      the turn of the message begins after the run has interrupted the task
--   steer      the message is also added to log and history, and the run can read it; if the run does not read it, the
--              turn of the message follows
--   interrupt  the message is also added to log and history; the worker stops the run, and the turn of the message
--              follows

-- Return true if a message of the client interrupts the run.
local function is_interrupting(r)
  return r.cancel_requested ~= '1' and r.interrupt_requested == micros(r.run)
end

-- Return true if the turn of a waiting message follows the run, even if the run completes the task. The run has read
-- the first `read_count` messages.
local function has_next_message(keys, r, read_count)
  if not r.has_messages or r.cancel_requested == '1' then return false end
  local waiting = redis.call('LINDEX', keys.turns, read_count)
  return waiting and (is_interrupting(r) or unpack_waiting(waiting)[7] ~= nil)
end

-- Remove the messages that a run has read. If the run ends with a question of `ask`, the next turn reads these messages
-- again.
local function remove_read_messages(keys, r, read_count, ask_count)
  if not r.has_messages then return end
  local indexes = {r.read_messages}
  for _ = 1, read_count do
    local message = next_waiting(keys, r)
    if not message then break end -- the store was restored without its newest writes
    indexes[#indexes + 1] = micros(message[8])
  end
  if ask_count == '0' then
    redis.call('HDEL', keys.record, 'read_messages')
  elseif #indexes > 0 then
    redis.call('HSET', keys.record, 'read_messages', table.concat(indexes, ' '))
  end
end

-- Remove the refused answer that began the turn, so that the next message answers the same question of `ask`.
local function remove_refused_answer(keys, r)
  r.turn_messages = string.match(r.turn_messages or '', '^(.*) %d+$') or '0'
  redis.call('HSET', keys.record, 'turn_messages', r.turn_messages)
end

-- Change the last status among the events to WORKING, because another turn follows. Return the
-- state that was replaced, or nil if no status was changed. Two concatenated protobuf messages are one merged message,
-- so the message of the status is preserved.
local function keep_working(r, events)
  for i = #events, 1, -1 do
    local event = events[i]
    if event.kind == 'S' then
      local state = tonumber(event.subject)
      if state == COMPLETED or INTERRUPTED[state] or TERMINAL[state] and is_interrupting(r) then
        event.subject, event.content = micros(WORKING), event.content .. r.working_event
        return state
      end
      return nil
    end
  end
end

-- Queue the run of a turn that replaces the open run. The task keeps its place in the queue of its context.
local function queue_in_place(keys, r, due)
  enter_queue(r)
  if is_blocked(keys, r) then
    redis.call('ZADD', r.dispatch .. ':blocked', micros(now()), run_name(r))
  else
    redis.call('ZADD', r.dispatch, micros(due), run_name(r))
  end
end

-- Remove the waiting message whose turn follows the run, and return its fields. If the run is interrupted, this is the
-- newest interrupting message, and otherwise the first message.
local function next_message(keys, r)
  if not is_interrupting(r) then return next_waiting(keys, r) end
  local newest
  for i, waiting in ipairs(redis.call('LRANGE', keys.turns, 0, -1)) do
    if unpack_waiting(waiting)[7] == 'interrupt' then newest = i end
  end
  for _ = 1, newest - 1 do
    local waiting = next_waiting(keys, r)
    if not waiting[7] then append_client_message(keys, r, next_timestamp(r), waiting[1]) end
  end
  return next_waiting(keys, r)
end

-- Close the open run and begin the turn of the next waiting message. The task stays WORKING. `before` is the state in
-- which the run would have left the task. Return the options of the new run. A watcher publishes the run after due_us.
local function begin_turn_of_message(keys, r, before, ask_count, due_us)
  if is_interrupting(r) then
    ask_count = '0'
    clean_up_turn(keys, r)
  end
  local _, _, request, caller, options, _, _, index = unpack(next_message(keys, r))
  close_run(r)
  redis.call('HSET', keys.record, 'ask_count', ask_count, 'interrupted_state', micros(INTERRUPTED[before] and before or INPUT_REQUIRED))
  start_turn(keys, r, index, WORKING, r.working_event, request, caller, options, ask_count)
  queue_in_place(keys, r, now() + due_us)
  return options
end

-- Replace a queued or suspended run with a run for the client's newest message, which is the last entry of the history.
local function replace_queued_run(keys, r, submitted, request, caller, options, due_us)
  redis.call('ZREM', r.dispatch .. ':blocked', run_name(r))
  close_run(r)
  clean_up_turn(keys, r)
  redis.call('HSET', keys.record, 'ask_count', '0', 'interrupted_state', micros(INPUT_REQUIRED))
  local state = r.state == SUBMITTED and SUBMITTED or WORKING
  local index = redis.call('LLEN', keys.history) - 1
  start_turn(keys, r, index, state, state == SUBMITTED and submitted or r.working_event, request, caller, options, '0')
  queue_in_place(keys, r, now() + due_us)
end

-- Cancel the task if a client requested cancellation, or begin the turn of a message that interrupts the run.
-- Return true if no other run of the turn may follow.
local function end_stopped_run(keys, r)
  if r.cancel_requested == '1' then
    write_status(keys, r, CANCELED, '1', r.canceled_event)
    end_task(keys, r)
  elseif is_interrupting(r) then
    begin_turn_of_message(keys, r, r.state, '0', 0)
  else
    return false
  end
  return true
end
