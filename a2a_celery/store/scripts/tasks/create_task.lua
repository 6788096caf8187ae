-- create_task: create a task in SUBMITTED with its first log entry, and queue its first run.
-- returns {'created', time of the status in µs, '1' if the run is blocked, '1' if the broker has the message of the run,
--       id of the context, description of the task by sections}; a call with the id of an existing task of the scope is a
--       repeated call, and returns the current values of the stored task
--       | the reply of a section
--       | {'limited', see lib/limits.lua}
--       | {'id_conflict'}: a task of another scope has the id
-- requires: blobs, context_queue, dispatch, indexes, limits, log_lookup, options, publication, runs, states, status, stored_bytes, tasks, time

local missing = missing_blobs(keys)
if missing then return missing end
local r = redis.call('EXISTS', keys.record) == 1 and load_record(keys)
if r and r.scope == scope then
  local at = string.match(log_entry(keys, r, 1), '^%d+')
  return {'created', at, is_blocked(keys, r) and '1' or '0', is_published(keys, r.run), r.context,
    table.concat({describe_sections(keys, r)})}
end
local refused = check_sections(keys) or r and {'id_conflict'}
if refused then return refused end
r = new_record(keys, {task_id = task_id, run = 1, scope = scope, context = context_id, retention = retention,
  context_queue = context_queue})
if is_nearly_full then return {'limited', 'memory', '0', micros(MEMORY_WAIT)} end
local description = table.concat({describe_sections(keys, r)})
task_event = task_event .. description
local request_size = #request + #caller + #options
local exceeded = admit_sections(keys, r, #task_event + request_size + new_blob_bytes(), true)
if exceeded then return exceeded end
local at = now()
local size = #task_event + #micros(at) + 2 + (r.quota_account and request_size or 0) + keep_blobs(keys, {})
redis.call('HSET', keys.record, 'task_id', task_id, 'context', context_id, 'scope', scope, 'agent', agent,
  'retention', retention, 'request', request, 'caller', caller, 'working_event', working_event, 'state', SUBMITTED,
  'at', micros(at), 'status', status_event, 'version', 1, 'run', 1, 'phase', 'queued', 'size', size, 'largest', #task_event)
if options ~= '' then set_options(keys.record, options) end
if metadata then merge_metadata(keys, metadata) end
redis.call('RPUSH', keys.log, micros(at) .. ' ' .. task_event)
redis.call('RPUSH', keys.history, 1)
if r.quota_account then
  redis.call('HSET', keys.record, 'quota_account', r.quota_account)
  r.size_growth = size
  count_growth(r)
end
add_to_indexes(keys, r, SUBMITTED, at)
if context_queue then redis.call('HSET', keys.record, 'context_queue', context_queue) end
if r.queue then redis.call('HSET', keys.record, 'queue', r.queue) end
queue_run(keys, r, at + FIRST_PUBLISH_GRACE_US)
if reply_channel then
  redis.call('HSET', keys.record, 'reply_channel', reply_channel.channel, 'final_only', reply_channel.final_only and '1' or '0')
end
accepted_sections(keys, task_id, 1, 0)
local blocked = is_blocked(keys, r)
local published = not blocked and publish_sections(keys, r)
return {'created', micros(at), blocked and '1' or '0', published and '1' or '0', context_id, description}
