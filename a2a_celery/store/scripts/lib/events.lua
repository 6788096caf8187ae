-- requires: artifacts, full_store, journal, log, metrics, states, status, stored_bytes, tasks, time, transitions

-- A script receives events as a list of tables with the fields of EventArguments in store/codec.py. Subject and flag
-- depend on the kind:
--   S  status update: new state, '1' if the status has a message
--   A  artifact update: id of the artifact, '1' if the chunk is appended
--   M  the agent's message that completes the task
--   U  message of the client
--   X  activity of the run's execution, which is not part of the log and never follows the terminal event
--   J  entry of the journal, which is not part of the log and never follows the terminal event: key of the entry

-- Return the state to which an event changes the task, or nil.
local function state_after(event)
  if event.kind == 'S' then return tonumber(event.subject) end
  return event.kind == 'M' and COMPLETED or nil
end

-- Return the position of the first illegal event, from 1, or nil if all events are legal in their order.
local function first_illegal(r, events)
  local state = r.state
  for i, event in ipairs(events) do
    if TERMINAL[state] then return i end
    local after = state_after(event)
    if after then
      if not LEGAL[state][after] then return i end
      state = after
    end
  end
  return nil
end

-- Maximum bytes of events that a run may write while Redis is at its memory limit.
local SMALL_WRITE = 8192

-- Allow the script at the memory limit of Redis if the events and `more` bytes are small. Otherwise, let Redis refuse
-- the script.
local function allow_small_write(keys, events, more)
  local bytes = more or 0
  for _, event in ipairs(events) do bytes = bytes + #event.content + #event.metadata end
  if bytes <= SMALL_WRITE then allow_on_full_store(keys.record) else refuse_on_full_store(keys.record) end
end

-- Return true if each event except activities changes the state.
local function changes_only_state(r, events)
  local state = r.state
  for _, event in ipairs(events) do
    if event.kind ~= 'X' then
      local after = state_after(event)
      if not after or after == state then return false end
      state = after
    end
  end
  return true
end

-- Return the CANCELED event `bytes` of an agent that stopped without a message, and the message flag of the event. If a
-- client requested cancellation, the event receives the message of the request. Two concatenated protobuf messages
-- are one merged message.
local function with_cancel_message(r, bytes)
  if not r.canceled_event then return bytes, '0' end
  return bytes .. r.canceled_event, '1'
end

local MAX_ACTIVITIES = 1000 -- maximum number of activities of a task; older activities are removed

-- Apply events to the task. The caller has checked the events, and saves the record afterwards.
local function apply_events(keys, r, events)
  for _, event in ipairs(events) do
    local kind, subject, flag, bytes = event.kind, event.subject, event.flag, event.content
    local after = state_after(event)
    if after == CANCELED and flag == '0' then bytes, flag = with_cancel_message(r, bytes) end
    append_waiting_messages(keys, r, after)
    local at = kind ~= 'X' and kind ~= 'J' and next_timestamp(r)
    if at and kind ~= 'U' then append_entry(keys, r, at, bytes) end
    if kind == 'S' then
      set_status(keys, r, after, flag, bytes, at)
      merge_metadata(keys, event.metadata)
    elseif kind == 'M' then
      set_status(keys, r, COMPLETED, '1', bytes, at)
    elseif kind == 'A' then
      add_chunk(keys, r, subject, flag, bytes)
    elseif kind == 'U' then
      append_client_message(keys, r, at, bytes)
    elseif kind == 'J' then
      write_entry(keys, r, subject, bytes)
    elseif kind == 'X' then
      add_size(r, #bytes)
      if redis.call('RPUSH', keys.execution, bytes) > MAX_ACTIVITIES then add_size(r, -#redis.call('LPOP', keys.execution)) end
    end
  end
end

-- Observe the time until the first event of a run, if `events` contain this event. `before` is the number of records
-- that the run wrote earlier.
local function observe_first_event(keys, r, before, events)
  if before > 0 and r.run_without_events ~= micros(r.run) then return end
  for _, event in ipairs(events) do
    if event.kind ~= 'X' and event.kind ~= 'J' then
      if r.run_without_events then redis.call('HDEL', keys.record, 'run_without_events') end
      return observe_duration(r, 'first', r.claimed_at)
    end
  end
  redis.call('HSET', keys.record, 'run_without_events', micros(r.run))
end
