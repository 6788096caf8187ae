-- create_task: a task with its first log entry, its first run and the promise to dispatch it. (none) → SUBMITTED
-- KEYS  a task's ten
-- ARGV  [1] task id  [2] context id  [3] scope  [4] scope index  [5] context index  [6] agent  [7] owner
--       [8] retention, s  [9] leases key  [10] dispatch key  [11] µs until the watcher publishes the run
--       [12] request  [13] caller  [14] the task event  [15] the status event  [16] '1' if the status has a message
--       [17] the client's message, as an event  [18] the event WORKING
--       [19] options of the run  [20] key of the message id, '' to take any  [21] digest of the message
--       [22] ms for which it is remembered  [23] the row of its context, '' if its runs need not come one by one
--       [24] limits, see refused  [25] reply_channel, '' for none  [26] '1' if that is rung only when the task stops
--       [27…] a push-notification config: what save_config takes
-- returns {'created', µs of the status, '1' if its run stands behind another}; for a repeated call as it is then
--       | {'known', task id, version, ahead}: the same message made that task  | {'conflict'}: another one has its id
--       | {'blobs_expired'}: its blobs may be removed  | {'limited', …}: see refused
-- requires: blobs, configs, context_queue, dispatch, indexes, limits, messages, options, states, stored_bytes, tasks, time
if lacks_blobs(KEYS, ARGV[9], ARGV[14]) then return {'blobs_expired'} end
local first = redis.call('LINDEX', KEYS[2], 0)
local function created(at) return {'created', at, is_blocked(KEYS, load_record(KEYS)) and '1' or '0'} end
if first then return created(string.match(first, '^%d+')) end
local heard = find_accepted(ARGV[20])
if heard then
  if heard[1] ~= ARGV[21] then return {'conflict'} end
  return {'known', heard[2], heard[4], heard[5]}
end
local size, kept = #ARGV[14] + #ARGV[17], #ARGV[12] + #ARGV[13] + #ARGV[19]
local over, queue, counted = check_limits(KEYS, ARGV[24], 'creates', ARGV[3], size + kept)
over = over or exceeded_webhooks(KEYS, 27)
if over then return over end
local at = now()
size = size + #micros(at) + 1 + (counted and kept or 0)
redis.call('HSET', KEYS[1],
  'task_id', ARGV[1], 'context', ARGV[2], 'scope', ARGV[3], 'scope_index', ARGV[4], 'context_index', ARGV[5],
  'agent', ARGV[6], 'owner', ARGV[7], 'retention', ARGV[8], 'leases', ARGV[9], 'dispatch', ARGV[10],
  'request', ARGV[12], 'caller', ARGV[13], 'options', '', 'working_event', ARGV[18], 'state', SUBMITTED, 'at', micros(at), 'status', ARGV[15],
  'has_message', ARGV[16], 'version', 1, 'recorded_at', micros(at), 'run', 1, 'phase', 'queued', 'token', '', 'runner', '', 'seq', 0,
  'turn', 1, 'attempt', 1, 'cancel_requested', '0', 'nonce', '',
  'size', size, 'largest', #ARGV[14])
if ARGV[19] ~= '' then set_options(KEYS[1], ARGV[19]) end
redis.call('RPUSH', KEYS[2], micros(at) .. ' ' .. ARGV[14])
redis.call('RPUSH', KEYS[3], ARGV[17])
if counted then
  local account = account_of(ARGV[3])
  redis.call('HSET', KEYS[1], 'quota_account', account)
  count_growth({leases = ARGV[9], quota_account = account, size_growth = size})
end
add_to_indexes(KEYS, {scope = ARGV[3], scope_index = ARGV[4], context_index = ARGV[5], retention = ARGV[8]}, SUBMITTED, at)
if ARGV[23] ~= '' then redis.call('HSET', KEYS[1], 'context_queue', ARGV[23]) end
if queue then redis.call('HSET', KEYS[1], 'queue', queue) end
queue_run(KEYS, {context_queue = ARGV[23] ~= '' and ARGV[23], queue = queue, dispatch = ARGV[10], task_id = ARGV[1], run = 1},
  at + tonumber(ARGV[11]))
if ARGV[25] ~= '' then redis.call('HSET', KEYS[1], 'reply_channel', ARGV[25], 'final_only', ARGV[26]) end
if ARGV[27] ~= '' then save_config(KEYS, load_record(KEYS), 27, 0) end
remember_message(ARGV[20], ARGV[21], ARGV[22], ARGV[1], KEYS[1], 1, 0)
if ARGV[23] == '' then return {'created', micros(at), '0'} end
return created(micros(at))
