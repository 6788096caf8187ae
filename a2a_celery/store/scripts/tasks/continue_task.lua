-- continue_task: accept a further message to a task. INPUT_REQUIRED or AUTH_REQUIRED → SUBMITTED, with the next run.
-- While a run is open, the agent's on_message determines the effect: the message waits until the run ends, can be read
-- by the run, interrupts the run, or is refused.
-- KEYS  keys of the task
-- ARGV  scope, context id ('' if the client sent none), nonce of the call, µs until a watcher publishes the run,
--       message event, SUBMITTED event, request, caller, maximum number of waiting messages, options of the run, key of
--       the message id ('' to accept any id), digest of the message, ms for which the id is stored, suffix of the
--       message if the task ends before the message is processed, limits as in check_limits, maximum bytes of the task
--       ('' for no limit), run whose question the message is known to answer ('' for none), on_message of the agent,
--       prefix of the channels of workers, the Celery message of the run: the arguments of push_message, and a
--       push-notification config: the arguments of save_config
-- returns {'begun', run, snapshot, '1' if the run is blocked, '1' if the broker has the Celery message of the run}
--       | {'waiting', number of waiting messages, snapshot}
--       | {'delivered', snapshot}: the open run can read the message, or is interrupted | {'working'}: a run is open
--       | {'question', run, JSON Schema of the answer}: the message answers the question of the run, and the caller
--       must validate the message
--       | {'missing'} | {'context', context of the task} | {'ended', state} | {'full'}: too many messages wait
--       | {'large'}: the task would be too large | {'configs'}: the task has too many configs
--       | {'known', task id, version, preceding turns}: the message was accepted before
--       | {'conflict'}: another message has the same id | {'limited', see check_limits}
-- requires: blobs, broker, configs, context_queue, full_store, incoming, limits, messages, nonces, notifications, runs, snapshot, states, status, stored_bytes, tasks, time, turns
local record, history, waiting_turns = KEYS[1], KEYS[3], KEYS[7]
local scope, context_id, nonce, due_us, message, submitted, request, caller = unpack(ARGV, 1, 8)
local max_waiting, options, message_key, digest, window_ms, suffix, limits, max_bytes = unpack(ARGV, 9, 16)
local answered_run, on_message, channel_prefix, first_config = ARGV[17], ARGV[18], ARGV[19], 29
local first_message = 20

local r = load_record(KEYS)
if not r or r.scope ~= scope then return {'missing'} end
local function begun()
  return {'begun', micros(r.run), snapshot(KEYS, r, -1, true), is_blocked(KEYS, r) and '1' or '0', is_published(KEYS, r.run)}
end
local function waiting(place) return {'waiting', tostring(place), snapshot(KEYS, r, -1, true)} end
local function delivered() return {'delivered', snapshot(KEYS, r, -1, true)} end
local is_delivered = on_message == 'steer' or on_message == 'interrupt'

-- Return the reply to a repeated call, or nil if the nonce of the call is new.
local function reply_of_repeat()
  if r.nonce == 'begun ' .. nonce then return begun() end
  if TERMINAL[r.state] then return nil end
  local later = 0 -- number of messages that were stored to wait after the message of this call
  for _, value in ipairs(nonces_of(KEYS, r)) do
    if value == 'begun ' .. nonce then return begun() end
    if value == nonce then
      local place = redis.call('LLEN', waiting_turns) - later
      if is_delivered then return delivered() end
      return place > 0 and waiting(place) or begun()
    end
    if not string.find(value, ' ', 1, true) then later = later + 1 end
  end
end

local repeated = reply_of_repeat()
if repeated then return repeated end
local accepted = find_accepted(message_key)
if accepted then
  if accepted[1] ~= digest then return {'conflict'} end
  return {'known', accepted[2], accepted[4], accepted[5]}
end
if context_id ~= '' and context_id ~= r.context then return {'context', r.context} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if r.phase ~= '' and on_message == 'reject' then return {'working'} end
if r.phase ~= '' and redis.call('LLEN', waiting_turns) >= tonumber(max_waiting) then return {'full'} end
if r.phase == '' and answered_run ~= micros(r.run) and r.answer_schema then
  return {'question', micros(r.run), r.answer_schema}
end
local blob_bytes = staged_bytes()
if max_bytes ~= '' and (r.size or 0) + #message * 2 + blob_bytes > tonumber(max_bytes) then return {'large'} end
local exceeded, queue = check_limits(KEYS, limits, r.phase == '' and 'begins' or 'waits', r.scope,
  #message * 2 + #request + #caller + #options + blob_bytes)
exceeded = exceeded or exceeded_webhooks(KEYS, first_config)
if exceeded then return exceeded end
refuse_on_full_store(record)
if not save_config(KEYS, r, first_config, r.version) then return {'configs'} end
add_size(r, adopt_blobs(KEYS, r))
if on_message == 'interrupt' and (r.phase == 'queued' or r.phase == 'suspended') then
  append_client_message(KEYS, r, next_timestamp(r), message)
  replace_queued_run(KEYS, r, submitted, request, caller, options, tonumber(due_us))
  set_nonce(KEYS, r, 'begun ' .. nonce)
  save_record(KEYS, r)
  remember_message(message_key, digest, window_ms, r.task_id, record, r.version, 0)
  notify(KEYS, r)
  return begun()
end
local turn = r.phase ~= '' and struct.pack('>I4c0I4c0I4c0I4c0I4c0I4c0', #message, message, #submitted, submitted, #request,
  request, #caller, caller, #options, options, #suffix, suffix)
if turn and is_delivered then
  append_client_message(KEYS, r, next_timestamp(r), message)
  turn = turn .. struct.pack('>I4c0I4', #on_message, on_message, redis.call('LLEN', history) - 1)
  redis.call('RPUSH', waiting_turns, turn)
  add_size(r, #turn)
  set_nonce(KEYS, r, nonce)
  redis.call('HSET', record, 'has_messages', '1')
  if on_message == 'interrupt' then redis.call('HSET', record, 'interrupt_requested', micros(r.run)) end
  save_record(KEYS, r)
  remember_message(message_key, digest, window_ms, r.task_id, record, r.version, 0)
  notify(KEYS, r)
  if r.phase == 'running' then redis.call('PUBLISH', channel_prefix .. r.runner, run_name(r) .. ' ' .. on_message) end
  return delivered()
end
if turn then
  local place = redis.call('RPUSH', waiting_turns, turn)
  add_size(r, #turn)
  count_growth(r)
  set_nonce(KEYS, r, nonce)
  redis.call('HSET', record, 'nonce', nonce, 'size', micros(r.size))
  remember_message(message_key, digest, window_ms, r.task_id, record, r.version, place)
  return waiting(place)
end
set_nonce(KEYS, r, 'begun ' .. nonce)
if queue then
  r.queue = queue
  redis.call('HSET', record, 'queue', queue)
end
begin_turn(KEYS, r, message, submitted, request, caller, options, tonumber(due_us))
save_record(KEYS, r)
remember_message(message_key, digest, window_ms, r.task_id, record, r.version, 0)
notify(KEYS, r)
if not is_blocked(KEYS, r) then push_message(KEYS, r, first_message) end
return begun()
