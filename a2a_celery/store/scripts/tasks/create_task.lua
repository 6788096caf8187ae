-- create_task: create a task in SUBMITTED with its first log entry, and queue its first run.
-- returns {'created', time of the status in µs, '1' if the run is blocked, '1' if the broker has the message of the run,
--       id of the context, description of the task by sections}; a call with the id of an existing task of the scope is a
--       repeated call, and returns the current values of the stored task
--       | the reply of a section
--       | {'limited', see check_limits}
--       | {'id_conflict'}: a task of another scope has the id
-- requires: blobs, broker, configs, context_queue, dispatch, indexes, limits, log_lookup, options, publication, states, status, stored_bytes, tasks, time

local scope_index, context_index = scope_index_of(prefix, scope), context_index_of(prefix, scope, context_id)
local missing = missing_blobs(keys)
if missing then return missing end
local r = redis.call('EXISTS', keys.record) == 1 and load_record(keys)
if r and r.scope == scope then
  local at = string.match(log_entry(keys, r, 1), '^%d+')
  return {'created', at, is_blocked(keys, r) and '1' or '0', is_published(keys, r.run), r.context,
    table.concat({describe_sections(keys, r)})}
end
local new = {scope = scope, context_queue = context_queue}
local refused = check_sections(keys) or r and {'id_conflict'} or validate_sections(keys, new)
if refused then return refused end
local description = table.concat({describe_sections(keys, new)})
task_event = task_event .. description
local request_size = #request + #caller + #options
local exceeded, queue, is_counted = check_limits(keys, limits, 'begins', scope, #task_event + #message + request_size + new_blob_bytes())
exceeded = exceeded or exceeded_webhooks(keys, config)
if exceeded then return exceeded end
local at = now()
local size = #task_event + #message + #micros(at) + 1 + (is_counted and request_size or 0) + keep_blobs(keys, {})
redis.call('HSET', keys.record, 'task_id', task_id, 'context', context_id, 'scope', scope, 'scope_index', scope_index,
  'context_index', context_index, 'agent', agent, 'retention', retention, 'leases', leases, 'dispatch', dispatch,
  'request', request, 'caller', caller, 'options', '', 'working_event', working_event, 'state', SUBMITTED, 'at', micros(at),
  'status', status_event, 'version', 1, 'run', 1, 'phase', 'queued', 'seq', 0, 'turn', 1, 'attempt', 1, 'size', size,
  'largest', #task_event)
if options ~= '' then set_options(keys.record, options) end
if metadata then merge_metadata(keys, metadata) end
redis.call('RPUSH', keys.log, micros(at) .. ' ' .. task_event)
redis.call('RPUSH', keys.history, message)
if is_counted then
  local account = account_of(scope)
  redis.call('HSET', keys.record, 'quota_account', account)
  count_growth({leases = leases, quota_account = account, size_growth = size})
end
add_to_indexes(keys, {scope = scope, scope_index = scope_index, context_index = context_index, retention = retention},
  SUBMITTED, at)
if context_queue then redis.call('HSET', keys.record, 'context_queue', context_queue) end
if queue then redis.call('HSET', keys.record, 'queue', queue) end
local run = {context_queue = context_queue, queue = queue, dispatch = dispatch, task_id = task_id, run = 1}
queue_run(keys, run, at + FIRST_PUBLISH_GRACE_US)
if reply_channel then
  redis.call('HSET', keys.record, 'reply_channel', reply_channel.channel, 'final_only', reply_channel.final_only and '1' or '0')
end
if config then save_config(keys, load_record(keys), config, 0) end
accepted_sections(keys, task_id, 1, 0)
local blocked = is_blocked(keys, run)
local published = blocked and '0' or push_message(keys, run, broker_message)
return {'created', micros(at), blocked and '1' or '0', published, context_id, description}
