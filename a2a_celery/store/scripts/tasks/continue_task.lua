-- continue_task: accept a further message to a task. INPUT_REQUIRED or AUTH_REQUIRED → SUBMITTED, with the next run.
-- While a run is open, the agent's on_message determines the effect: the message waits until the run ends, can be read
-- by the run, interrupts the run, or is refused.
-- returns {'begun', run, snapshot, '1' if the run is blocked, '1' if the broker has the Celery message of the run}
--       | {'waiting', number of waiting messages, snapshot}
--       | {'delivered', snapshot}: the open run can read the message, or is interrupted | {'working'}: a run is open
--       | {'missing'} | {'context', context of the task} | {'ended', state} | {'full'}: too many messages wait
--       | {'large'}: the task would be too large | {'limited', see lib/limits.lua} | the reply of a section
-- requires: blobs, context_queue, full_store, incoming, limits, nonces, notifications, publication, runs, snapshot, states, status, stored_bytes, tasks, time, turns

local missing = missing_blobs(keys)
if missing then return missing end
local r = load_record(keys)
if not r or r.scope ~= scope then return {'missing'} end
local function begun()
  return {'begun', micros(r.run), snapshot(keys, r, -1, true), is_blocked(keys, r) and '1' or '0', is_published(keys, r.run)}
end
local function waiting(place) return {'waiting', tostring(place), snapshot(keys, r, -1, true)} end
local function delivered() return {'delivered', snapshot(keys, r, -1, true)} end
local is_delivered = on_message == 'steer' or on_message == 'interrupt'

-- Return the reply to a repeated call, or nil if the nonce of the call is new.
local function reply_of_repeat()
  if r.nonce == 'begun ' .. nonce then return begun() end
  if TERMINAL[r.state] then return nil end
  local later = 0 -- number of messages that were stored to wait after the message of this call
  for _, value in ipairs(nonces_of(keys, r)) do
    if value == 'begun ' .. nonce then return begun() end
    if value == nonce then
      local place = redis.call('LLEN', keys.turns) - later
      if is_delivered then return delivered() end
      return place > 0 and waiting(place) or begun()
    end
    if not string.find(value, ' ', 1, true) then later = later + 1 end
  end
end

local repeated = reply_of_repeat()
if repeated then return repeated end
local refused = check_sections(keys)
if refused then return refused end
if context_id ~= '' and context_id ~= r.context then return {'context', r.context} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if r.phase ~= '' and on_message == 'reject' then return {'working'} end
if r.phase ~= '' and redis.call('LLEN', keys.turns) >= MAX_WAITING_TURNS then return {'full'} end
local unvalidated = validate_sections(keys, r)
if unvalidated then return unvalidated end
local blob_bytes = new_blob_bytes()
if max_bytes and (r.size or 0) + #message + blob_bytes > max_bytes then return {'large'} end
if is_nearly_full then return {'limited', 'memory', '0', micros(MEMORY_WAIT)} end
local exceeded = admit_sections(keys, r, #message + #request + #caller + #options + blob_bytes, r.phase == '')
if exceeded then return exceeded end
refuse_on_full_store(keys.record)
add_size(r, keep_blobs(keys, r))
if on_message == 'interrupt' and (r.phase == 'queued' or r.phase == 'suspended') then
  append_client_message(keys, r, next_timestamp(r), message)
  replace_queued_run(keys, r, submitted, request, caller, options, FIRST_PUBLISH_GRACE_US)
  set_nonce(keys, r, 'begun ' .. nonce)
  save_record(keys, r)
  accepted_sections(keys, r.task_id, r.version, 0)
  notify(keys, r)
  return begun()
end
local turn = r.phase ~= '' and struct.pack('>I4c0I4c0I4c0I4c0I4c0I4c0', #message, message, #submitted, submitted, #request,
  request, #caller, caller, #options, options, #suffix, suffix)
if turn and is_delivered then
  append_client_message(keys, r, next_timestamp(r), message)
  turn = turn .. struct.pack('>I4c0I4', #on_message, on_message, redis.call('LLEN', keys.history) - 1)
  redis.call('RPUSH', keys.turns, turn)
  add_size(r, #turn)
  set_nonce(keys, r, nonce)
  redis.call('HSET', keys.record, 'has_messages', '1')
  if on_message == 'interrupt' then redis.call('HSET', keys.record, 'interrupt_requested', micros(r.run)) end
  save_record(keys, r)
  accepted_sections(keys, r.task_id, r.version, 0)
  notify(keys, r)
  if r.phase == 'running' then redis.call('PUBLISH', runners .. r.runner, run_name(r) .. ' ' .. on_message) end
  return delivered()
end
if turn then
  local place = redis.call('RPUSH', keys.turns, turn)
  add_size(r, #turn)
  count_growth(r)
  set_nonce(keys, r, nonce)
  redis.call('HSET', keys.record, 'nonce', nonce, 'size', micros(r.size))
  accepted_sections(keys, r.task_id, r.version, place)
  return waiting(place)
end
set_nonce(keys, r, 'begun ' .. nonce)
if r.queue then redis.call('HSET', keys.record, 'queue', r.queue) end
begin_turn(keys, r, message, submitted, request, caller, options, FIRST_PUBLISH_GRACE_US)
save_record(keys, r)
accepted_sections(keys, r.task_id, r.version, 0)
notify(keys, r)
if not is_blocked(keys, r) then publish_sections(keys, r) end
return begun()
