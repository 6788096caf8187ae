-- create_task: create a task in SUBMITTED with its first log entry, and queue its first run.
-- KEYS  keys of the task
-- ARGV  task id, context id, scope, scope index, context index, agent, retention in seconds, list of leases, list of
--       queued runs, µs until a watcher publishes the run, request, caller, task event, status event, message event,
--       WORKING event, options of the run, key of the message id ('' to accept any id), digest of the message, ms for
--       which the id is stored, queue of the context ('' if its runs are not serialized), limits as in check_limits,
--       reply channel ('' for none), '1' if it receives final states only, the tick of a schedule: the arguments of
--       refused_tick, and packed metadata, the parent: the arguments of find_parent, and for a child a suffix of the
--       task event and packed metadata, the Celery message of the run: the arguments of push_message, and a
--       push-notification config: the arguments of save_config
-- returns {'created', time of the status in µs, '1' if the run is blocked, '1' if the task is a child, '1' if the
--       broker has the message of the run, id of the context}; a call with the id of an existing task of the scope is a
--       repeated call, and returns the current values of the stored task
--       | {'known', task id, version, preceding turns}: the message was accepted before
--       | {'conflict'}: another message has the same id
--       | {'blobs_expired'}: the blobs may have been removed | {'limited', see check_limits}
--       | {'skipped'}: a task of the schedule is SUBMITTED or WORKING
--       | {'repeated', tag of the task}: the tick was handled before; the tag is '' if the tick was skipped
--       | {'limited', 'children', maximum, µs}: the parent has too many live children | {'deep'}: too many ancestors
--       | {'waits_for_itself'}: the run would be blocked by a task that waits for the new task
--       | {'id_conflict'}: a task of another scope has the id
-- requires: blobs, broker, configs, context_queue, dispatch, family, indexes, keys, limits, log_lookup, messages, options, schedules, states, status, stored_bytes, tasks, time
local record, log, history = KEYS[1], KEYS[2], KEYS[3]
local task_id, context_id, scope, scope_index, context_index, agent, retention, leases, dispatch = unpack(ARGV, 1, 9)
local due_us, request, caller, task_event, status_event, message, working_event, options = unpack(ARGV, 10, 17)
local message_key, digest, window_ms, context_queue, limits, reply_channel, final_only = unpack(ARGV, 18, 24)
local first_tick, schedule_index, ticks, tick, tick_metadata = 25, ARGV[25], ARGV[26], ARGV[27], ARGV[30]
local first_parent, parent_id, task_suffix, parent_metadata = 31, ARGV[31], ARGV[36], ARGV[37]
local first_message, config, first_config = 38, ARGV[47], 47

if lacks_blobs(KEYS, leases, task_event) then return {'blobs_expired'} end
local r = redis.call('EXISTS', record) == 1 and load_record(KEYS)
if r and r.scope == scope then
  local at = string.match(log_entry(KEYS, r, 1), '^%d+')
  return {'created', at, is_blocked(KEYS, r) and '1' or '0', r.parent and '1' or '0', is_published(KEYS, r.run), r.context}
end
local refused = refused_tick(first_tick, retention)
if refused then return refused end
if r then return {'id_conflict'} end
local accepted = find_accepted(message_key)
if accepted then
  if accepted[1] ~= digest then return {'conflict'} end
  return {'known', accepted[2], accepted[4], accepted[5]}
end
local request_size = #request + #caller + #options
local exceeded, queue, is_counted = check_limits(KEYS, limits, 'creates', scope, #task_event + #message + request_size + staged_bytes())
exceeded = exceeded or exceeded_webhooks(KEYS, first_config)
if exceeded then return exceeded end
local parent = find_parent(KEYS, first_parent, scope)
if parent and parent.exceeded == 'depth' then return {'deep'} end
if parent and parent.exceeded then return {'limited', 'children', ARGV[first_parent + 4], micros(LONG_WAIT)} end
if parent and waits_for_itself(KEYS, parent, context_queue) then return {'waits_for_itself'} end
if parent then task_event = task_event .. task_suffix end
local at = now()
local size = #task_event + #message + #micros(at) + 1 + (is_counted and request_size or 0) + adopt_blobs(KEYS, {})
redis.call('HSET', record, 'task_id', task_id, 'context', context_id, 'scope', scope, 'scope_index', scope_index,
  'context_index', context_index, 'agent', agent, 'retention', retention, 'leases', leases, 'dispatch', dispatch,
  'request', request, 'caller', caller, 'options', '', 'working_event', working_event, 'state', SUBMITTED, 'at', micros(at),
  'status', status_event, 'version', 1, 'run', 1, 'phase', 'queued', 'seq', 0, 'turn', 1, 'attempt', 1, 'size', size,
  'largest', #task_event)
if options ~= '' then set_options(record, options) end
if parent then
  join_family(KEYS, parent, parent_id)
  merge_metadata(KEYS, parent_metadata)
end
if schedule_index ~= '' then
  redis.call('HSET', record, 'schedule_index', schedule_index, 'tick', tick)
  merge_metadata(KEYS, tick_metadata)
  record_tick(ticks, tick, task_tag(KEYS), retention)
end
redis.call('RPUSH', log, micros(at) .. ' ' .. task_event)
redis.call('RPUSH', history, message)
if is_counted then
  local account = account_of(scope)
  redis.call('HSET', record, 'quota_account', account)
  count_growth({leases = leases, quota_account = account, size_growth = size})
end
add_to_indexes(KEYS, {scope = scope, scope_index = scope_index, context_index = context_index, retention = retention,
  schedule_index = schedule_index ~= '' and schedule_index}, SUBMITTED, at)
local is_serialized = context_queue ~= ''
if is_serialized then redis.call('HSET', record, 'context_queue', context_queue) end
if queue then redis.call('HSET', record, 'queue', queue) end
local run = {context_queue = is_serialized and context_queue, queue = queue, dispatch = dispatch, task_id = task_id, run = 1}
queue_run(KEYS, run, at + tonumber(due_us))
if reply_channel ~= '' then redis.call('HSET', record, 'reply_channel', reply_channel, 'final_only', final_only) end
if config ~= '' then save_config(KEYS, load_record(KEYS), first_config, 0) end
remember_message(message_key, digest, window_ms, task_id, record, 1, 0)
local blocked = is_blocked(KEYS, run)
local published = blocked and '0' or push_message(KEYS, run, first_message)
return {'created', micros(at), blocked and '1' or '0', parent and '1' or '0', published, context_id}
