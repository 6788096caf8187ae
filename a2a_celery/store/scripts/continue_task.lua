-- continue_task: a further message to a task. INPUT_REQUIRED or AUTH_REQUIRED → SUBMITTED, with the next run;
-- while a run is open the message waits for its end.
-- KEYS  a task's ten
-- ARGV  [1] scope  [2] context id, '' if the client named none  [3] nonce  [4] µs until the watcher publishes the run
--       [5] message event  [6] SUBMITTED event  [7] request  [8] caller  [9] how many messages may wait
--       [10] options of the run  [11] key of the message id, '' to take any  [12] digest of the message
--       [13] ms for which it is remembered  [14] what the message gets behind it if the task ends before its turn
--       [15] limits of a run that it begins, see refused  [16…] a push-notification config: what save_config takes
-- gives {'missing'} | {'context', the task's} | {'ended', state} | {'full'} | {'configs'}: too many | {'begun', run, snapshot, '1' if it stands behind
--       another}
--       | {'waiting', how many there are with it, snapshot}
--       | {'known', task id, version, ahead}: it was accepted before  | {'conflict'}: another message has its id
--       | {'limited', …}: see refused
local r = load(KEYS)
if not r or r.scope ~= ARGV[1] then return {'missing'} end
local function begun() return {'begun', micros(r.run), snapshot(KEYS, r, -1, true), stands_behind(KEYS, r) and '1' or '0'} end
local function waiting() return {'waiting', tostring(redis.call('LLEN', KEYS[7])), snapshot(KEYS, r, -1, true)} end
if not TERMINAL[r.state] then
  if r.nonce == 'begun ' .. ARGV[3] then return begun() end
  if r.nonce == ARGV[3] then return waiting() end
end
local heard = heard_before(ARGV[11])
if heard then
  if heard[1] ~= ARGV[12] then return {'conflict'} end
  return {'known', heard[2], heard[4], heard[5]}
end
if ARGV[2] ~= '' and ARGV[2] ~= r.context then return {'context', r.context} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if r.phase ~= '' and redis.call('LLEN', KEYS[7]) >= tonumber(ARGV[9]) then return {'full'} end
local over, queue
if r.phase == '' then over, queue = refused(KEYS, ARGV[15]) end
if over then return over end
if not save_config(KEYS, r, 16, r.version) then return {'configs'} end
if r.phase ~= '' then
  redis.call('RPUSH', KEYS[7], struct.pack('>I4c0I4c0I4c0I4c0I4c0I4c0', #ARGV[5], ARGV[5], #ARGV[6], ARGV[6],
    #ARGV[7], ARGV[7], #ARGV[8], ARGV[8], #ARGV[10], ARGV[10], #ARGV[14], ARGV[14]))
  redis.call('HSET', KEYS[1], 'nonce', ARGV[3])
  remember(ARGV[11], ARGV[12], ARGV[13], r.task_id, KEYS[1], r.version, redis.call('LLEN', KEYS[7]))
  return waiting()
end
r.nonce = 'begun ' .. ARGV[3]
if queue then
  r.queue = queue
  redis.call('HSET', KEYS[1], 'queue', queue)
end
begin_turn(KEYS, r, ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[10], tonumber(ARGV[4]))
save(KEYS, r)
remember(ARGV[11], ARGV[12], ARGV[13], r.task_id, KEYS[1], r.version, 0)
wake(KEYS, r)
return begun()
