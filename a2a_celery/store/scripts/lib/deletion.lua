-- requires: blobs, cursors, keys, stored_bytes, time

-- Delete all keys of a task. The caller has removed the task from the indexes.
local function delete_task(keys, r)
  if r.quota_account then
    redis.call('ZREM', stored_key(r) .. ':expiring', expiring_entry(keys, r))
    add_to_sums(stored_key(r), r.quota_account, -r.size)
  end
  for _, artifact_id in ipairs(redis.call('LRANGE', keys.artifacts, 0, -1)) do redis.call('DEL', keys.chunks .. artifact_id) end
  if r.enabled_configs then delete_cursors(keys, r) end
  redis.call('DEL', keys.record, keys.log, keys.history, keys.artifacts, keys.metadata, keys.turns, keys.execution, keys.journal, keys.signals)
  if r.blobs then delete_blobs(keys, '') end
  redis.call('ZADD', deployment_key(r, 'blobs'), 'XX', micros(now()), task_tag(keys))
end
