-- requires: blobs, cleanup, code_versions, context_queue, cursors, indexes, journal, keys, metrics, packed, pauses, runs, states, stored_bytes, task_waits, time

local PACKED_KEYS = {'record', 'log', 'metadata'}
local EXPIRING_KEYS = {'record', 'log', 'history', 'artifacts', 'metadata', 'execution'}

-- Let all keys of an ended task expire together, after `retention` seconds.
local function expire_task(keys, r)
  if r.quota_account then
    count_growth(r)
    redis.call('ZADD', stored_key(r) .. ':expiring', micros(now() + tonumber(r.retention) * 1000000), expiring_entry(keys, r))
  end
  for _, artifact_id in ipairs(r.packed and {} or redis.call('LRANGE', keys.artifacts, 0, -1)) do
    redis.call('EXPIRE', keys.chunks .. artifact_id, r.retention)
  end
  for _, name in ipairs(r.packed and PACKED_KEYS or EXPIRING_KEYS) do redis.call('EXPIRE', keys[name], r.retention) end
  if r.blobs then change_expiry_of_blobs(keys, 'EXPIRE', r.retention) end
  if r.journal_bytes then redis.call('EXPIRE', keys.journal, r.retention) end
  if r.signal_bytes then redis.call('EXPIRE', keys.signals, r.retention) end
  if r.enabled_configs then expire_cursors(keys, r, r.retention) end
end

-- Delete the data for a further run: request, journal and signals. Also delete the fields `fields` of the record. The
-- ids of signals stay, because clients may repeat a signal after the end.
local function delete_run_data(keys, r, fields)
  delete_journal(keys, r)
  if r.signal_bytes then
    redis.call('DEL', keys.signals)
    add_size(r, -tonumber(r.signal_bytes))
    r.signal_bytes = false
  end
  if r.quota_account then add_size(r, -size_of_request(keys)) end
  for _, field in ipairs({'request', 'caller', 'options', 'begins_at', 'turn_messages', 'read_messages', 'signal_bytes',
    not r.enabled_configs and 'trace' or nil}) do
    fields[#fields + 1] = field
  end
  redis.call('HDEL', keys.record, unpack(fields))
end

local NEWEST_FAILURES = 200

-- Add a failed task to the list of the newest failed tasks of all owners, for operators.
local function record_failure(keys, r)
  local failures = prefix_of(keys) .. ':failures'
  redis.call('ZADD', failures, micros(r.at), task_tag(keys))
  redis.call('ZREMRANGEBYRANK', failures, 0, -NEWEST_FAILURES - 1)
  redis.call('EXPIRE', failures, math.max(tonumber(r.retention), redis.call('TTL', failures)))
end

-- End the task and its run. The keys of the task expire together, or wait for the archive. With `is_resubmittable`, the
-- task keeps the data for a further run (request, options, journal and signals) and is not packed.
local function end_task(keys, r, is_resubmittable)
  close_run(r)
  leave_context_queue(keys, r, 0)
  count_metric(r, 'ended', micros(r.state))
  if r.state == FAILED then record_failure(keys, r) end
  if r.state == CANCELED then observe_duration(r, 'cancel', r.cancel_requested_at) end
  if ends_without_result(r.state) and r.cleanup then join_cleanup(keys, r.cleanup) end
  end_pause(keys, r)
  resume_waiting_run(keys, r)
  redis.call('DEL', keys.turns)
  local fields = {'working_event', 'canceled_event', 'settled', 'pause_timeout', 'canvas', 'recorded_result',
    'worker', 'reply_channel', 'final_only', 'suspended', 'wait_signal', 'wait_key', 'wait_header', 'wait_timeout',
    'resumed_by', 'earlier_nonces', 'has_messages', 'interrupt_requested', 'claimed_version'}
  if is_resubmittable then
    if r.code_version then count_code_version_tasks(r, r.code_version, -1) end
    redis.call('HDEL', keys.record, unpack(fields))
    local resubmittable = prefix_of(keys) .. ':dead_letters'
    redis.call('ZREMRANGEBYSCORE', resubmittable, '-inf', micros(now()))
    redis.call('ZADD', resubmittable, micros(now() + tonumber(r.retention) * 1000000), task_tag(keys))
    redis.call('EXPIRE', resubmittable, math.max(tonumber(r.retention), redis.call('TTL', resubmittable)))
  else
    delete_run_data(keys, r, fields)
    pack_task(keys, r)
  end
  if is_archiving(keys, r) then
    local archive = prefix_of(keys) .. ':archive'
    redis.call('ZADD', archive, micros(r.at + tonumber(r.retention) * 1000000), task_tag(keys))
  else
    expire_task(keys, r)
  end
end
