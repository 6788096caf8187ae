-- continue_task: a further message to a task. INPUT_REQUIRED or AUTH_REQUIRED → SUBMITTED, with the next run;
-- while a run is open the message waits for its end.
-- KEYS  a task's ten
-- ARGV  [1] scope  [2] context id, '' if the client named none  [3] nonce  [4] µs until the watcher publishes the run
--       [5] message event  [6] SUBMITTED event  [7] request  [8] caller  [9] how many messages may wait
--       [10] options of the run  [11] key of the message id, '' to take any  [12] digest of the message
--       [13] ms for which it is remembered  [14] what the message gets behind it if the task ends before its turn
--       [15] limits of a run that it begins, see refused  [16] bytes that a task may have, '' for any number
--       [17…] a push-notification config: what save_config takes
-- returns {'missing'} | {'context', the task's} | {'ended', state} | {'full'} | {'large'}: the task would have too many bytes | {'configs'}: too many | {'begun', run, snapshot, '1' if it stands behind
--       another}
--       | {'waiting', how many there are with it, snapshot}
--       | {'known', task id, version, ahead}: it was accepted before  | {'conflict'}: another message has its id
--       | {'limited', …}: see refused
-- requires: configs, context_queue, full_store, limits, messages, notifications, snapshot, states, stored_bytes, tasks, time, turns
local r = load_record(KEYS)
if not r or r.scope ~= ARGV[1] then return {'missing'} end
local function begun() return {'begun', micros(r.run), snapshot(KEYS, r, -1, true), is_blocked(KEYS, r) and '1' or '0'} end
local function waiting() return {'waiting', tostring(redis.call('LLEN', KEYS[7])), snapshot(KEYS, r, -1, true)} end
if not TERMINAL[r.state] then
  if r.nonce == 'begun ' .. ARGV[3] then return begun() end
  if r.nonce == ARGV[3] then return waiting() end
end
local heard = find_accepted(ARGV[11])
if heard then
  if heard[1] ~= ARGV[12] then return {'conflict'} end
  return {'known', heard[2], heard[4], heard[5]}
end
if ARGV[2] ~= '' and ARGV[2] ~= r.context then return {'context', r.context} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if r.phase ~= '' and redis.call('LLEN', KEYS[7]) >= tonumber(ARGV[9]) then return {'full'} end
if ARGV[16] ~= '' and (r.size or 0) + #ARGV[5] * 2 > tonumber(ARGV[16]) then return {'large'} end
local over, queue = check_limits(KEYS, ARGV[15], r.phase == '' and 'begins' or 'waits', r.scope,
  #ARGV[5] * 2 + #ARGV[7] + #ARGV[8] + #ARGV[10])
over = over or exceeded_webhooks(KEYS, 17)
if over then return over end
refuse_on_full_store(KEYS[1])
if not save_config(KEYS, r, 17, r.version) then return {'configs'} end
if r.phase ~= '' then
  local waiting_turn = struct.pack('>I4c0I4c0I4c0I4c0I4c0I4c0', #ARGV[5], ARGV[5], #ARGV[6], ARGV[6],
    #ARGV[7], ARGV[7], #ARGV[8], ARGV[8], #ARGV[10], ARGV[10], #ARGV[14], ARGV[14])
  redis.call('RPUSH', KEYS[7], waiting_turn)
  add_size(r, #waiting_turn)
  count_growth(r)
  redis.call('HSET', KEYS[1], 'nonce', ARGV[3], 'size', micros(r.size))
  remember_message(ARGV[11], ARGV[12], ARGV[13], r.task_id, KEYS[1], r.version, redis.call('LLEN', KEYS[7]))
  return waiting()
end
r.nonce = 'begun ' .. ARGV[3]
if queue then
  r.queue = queue
  redis.call('HSET', KEYS[1], 'queue', queue)
end
begin_turn(KEYS, r, ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[10], tonumber(ARGV[4]))
save_record(KEYS, r)
remember_message(ARGV[11], ARGV[12], ARGV[13], r.task_id, KEYS[1], r.version, 0)
notify(KEYS, r)
return begun()
