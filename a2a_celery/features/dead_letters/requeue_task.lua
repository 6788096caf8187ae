-- requeue_task: create a new task from a dead letter, for the same caller, context and turn, and queue its first run.
-- The task of the dead letter stays FAILED.
-- returns {'requeued'}, even for a repeated call | {'blocked'}: requeued, but another run of the context comes first
--       | {'gone'}: the dead letter no longer exists
--
-- The record of a requeued dead letter has `requeued_as`, the id of the new task.
-- requires: blobs, code_versions, context_queue, dispatch, full_store, journal, keys, options, publication, replacement, signals, stored_bytes, tasks, time

local missing = missing_blobs(new_keys)
if missing then return missing end
local dead = load_record(dead_keys)
if dead and dead.requeued_as == task_id then return {'requeued'} end
refuse_on_full_store(dead_keys.record)
if not dead or redis.call('ZREM', resubmittable, task_tag(dead_keys)) == 0 then return {'gone'} end
local record = new_keys.record
redis.call('HSET', record, 'task_id', task_id, 'context', dead.context, 'scope', dead.scope, 'agent', dead.agent,
  'retention', retention, 'request', request, 'caller', dead.caller,
  'working_event', working_event, 'ask_count', dead.ask_count or '0',
  'requeued_from', (dead.requeued_from or '') .. quoted(dead.task_id) .. ' ')
set_options(record, options)
if dead.queue then redis.call('HSET', record, 'queue', dead.queue) end
if dead.joined_indexes then redis.call('HSET', record, 'joined_indexes', dead.joined_indexes) end
if dead.context_queue then redis.call('HSET', record, 'context_queue', dead.context_queue) end
-- The history of the new task is the history of the dead letter up to the message of the turn, so its indexes are valid.
for _, field in ipairs({'interrupted_state', 'turn_messages', 'read_messages'}) do
  if dead[field] then redis.call('HSET', record, field, dead[field]) end
end
local r = new_record(new_keys, {task_id = task_id, scope = dead.scope, context = dead.context,
  joined_indexes = dead.joined_indexes, retention = retention, quota_account = dead.quota_account, queue = dead.queue,
  context_queue = dead.context_queue, state = 0, version = 0, run = 1, phase = 'queued', turn = dead.turn})
if dead.quota_account then
  redis.call('HSET', record, 'quota_account', dead.quota_account)
  add_size(r, size_of_request(new_keys))
end
add_size(r, keep_blobs(new_keys, r))
replace_task(new_keys, r, task)
if not from_start then
  redis.call('HSET', record, 'journal_origin', dead.journal_origin or dead.task_id)
end
resubmitted_sections(dead_keys, dead, new_keys, task_id, not from_start)
if not from_start and tonumber(dead.journal_bytes or '0') > 0 then
  redis.call('RENAME', dead_keys.journal, new_keys.journal)
  redis.call('PERSIST', new_keys.journal)
  redis.call('HSET', record, 'journal_bytes', dead.journal_bytes)
  add_size(r, tonumber(dead.journal_bytes))
  for _, entry in ipairs(entries) do write_entry(new_keys, r, entry.key, entry.content) end
end
local freed_bytes = tonumber(dead.journal_bytes or '0') + tonumber(dead.signal_bytes or '0')
if dead.journal_blobs then freed_bytes = freed_bytes + remove_journal_blobs(dead_keys, dead.journal_blobs) end
if dead.quota_account then freed_bytes = freed_bytes + size_of_request(dead_keys) end
free_bytes(dead_keys, dead, freed_bytes)
if not from_start and dead.code_version then set_code_version(new_keys, r, dead.code_version) end
if dead.signal_ids then redis.call('HSET', record, 'signal_ids', dead.signal_ids) end
for _, signal in ipairs(redis.call('LRANGE', dead_keys.signals, 0, -1)) do
  push_signal(new_keys, r, signal)
end
save_record(new_keys, r)
queue_run(new_keys, r, now() + FIRST_PUBLISH_GRACE_US)
redis.call('DEL', dead_keys.journal, dead_keys.signals)
redis.call('HDEL', dead_keys.record, 'request', 'caller', 'options', 'begins_at', 'turn_messages', 'read_messages',
  'journal_bytes', 'journal_origin', 'signal_ids', 'signal_bytes', 'code_version', 'journal_blobs')
redis.call('HSET', dead_keys.record, 'requeued_as', task_id)
return {is_blocked(new_keys, r) and 'blocked' or 'requeued'}
