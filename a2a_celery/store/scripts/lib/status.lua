-- requires: indexes, log, own_metadata, states, stored_bytes, tasks, time

-- Append the message of the current status to the history, if the status has a message.
local function move_status_to_history(keys, r)
  if r.has_message ~= '1' then return end
  redis.call('RPUSH', keys.history, r.status)
  add_size(r, #r.status)
end

-- Append a client's message to the log, and its number in the log to the history, after the agent's previous message.
local function append_client_message(keys, r, at, message)
  append_entry(keys, r, at, message)
  move_status_to_history(keys, r)
  r.has_message = '0'
  local number = micros(r.version)
  redis.call('RPUSH', keys.history, number)
  add_size(r, #number)
end

-- Return the fields of a waiting message that continue_task packed: message, SUBMITTED event, request, caller, options,
-- suffix of the message if the task ends before the message is processed and, if the message is already in the history,
-- 'steer' or 'interrupt' and the index of the message in the history.
local function unpack_waiting(waiting)
  local fields = {struct.unpack('>I4c0I4c0I4c0I4c0I4c0I4c0', waiting)}
  local position = table.remove(fields)
  if position <= #waiting then fields[7], fields[8] = struct.unpack('>I4c0I4', waiting, position) end
  return fields
end

-- Remove the first waiting message and return its fields, or nil if no message waits.
local function next_waiting(keys, r)
  local waiting = redis.call('LPOP', keys.turns)
  if waiting then
    add_size(r, -#waiting)
    return unpack_waiting(waiting)
  end
end

-- If `state` is terminal, append the waiting messages to the history, marked as not processed. Two concatenated
-- protobuf messages are one merged message. A message that is already in the history does not change.
local function append_waiting_messages(keys, r, state)
  if not TERMINAL[state] then return end
  local waiting = next_waiting(keys, r)
  while waiting do
    if not waiting[7] then append_client_message(keys, r, next_timestamp(r), waiting[1] .. waiting[6]) end
    waiting = next_waiting(keys, r)
  end
end

local function set_status(keys, r, state, has_message, bytes, at)
  move_status_to_history(keys, r)
  if r.state ~= state then
    remove_from_indexes(keys, r, r.state)
    if r.entered_at then redis.call('HDEL', keys.record, 'entered_at') end
    r.entered_at = false
  elseif not r.entered_at then
    r.entered_at = micros(r.at)
    redis.call('HSET', keys.record, 'entered_at', r.entered_at)
  end
  add_to_indexes(keys, r, state, at)
  redis.call('HDEL', keys.metadata, unpack(state == WORKING and OUTDATED_IN_WORKING or OUTDATED_ELSE))
  r.state, r.at, r.status, r.has_message = state, at, bytes, has_message
  if TERMINAL[state] or INTERRUPTED[state] then r.is_final = true end
end

-- Write an event of the script itself that only changes the status.
local function write_status(keys, r, state, has_message, bytes)
  append_waiting_messages(keys, r, state)
  local at = next_timestamp(r)
  append_entry(keys, r, at, bytes)
  set_status(keys, r, state, has_message, bytes, at)
end

-- Merge packed metadata into the metadata of the task. The packed form consists of pairs of key and value, each
-- preceded by its length in four bytes (big-endian).
local function merge_metadata(keys, packed)
  local position = 1
  while position <= #packed do
    local key, value
    key, value, position = struct.unpack('>I4c0I4c0', packed, position)
    redis.call('HSET', keys.metadata, key, value)
  end
end
