-- update_archive_backlog: if archiving is enabled, add the tasks that ended before archiving was enabled to the list of
-- tasks for the archive. If archiving is disabled, let the listed tasks expire. Handles one page of the keyspace.
-- Repeat the call until the cursor is 0.
-- returns {next cursor, number of changed tasks}
-- requires: blobs, full_store, indexes, keys, retirement, states, stored_bytes, tasks, time

allow_on_full_store(installation)
local archives = redis.call('HGET', installation, 'archive') == '1'
local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', PAGE)
local changed = 0

local function list_for_archive(keys, r)
  if r.quota_account then redis.call('ZREM', stored_key(r) .. ':expiring', expiring_entry(keys, r)) end
  for _, artifact_id in ipairs(redis.call('LRANGE', keys.artifacts, 0, -1)) do redis.call('PERSIST', keys.chunks .. artifact_id) end
  for _, name in ipairs({'record', 'log', 'history', 'artifacts', 'metadata', 'cursors', 'execution', 'journal', 'signals'}) do
    redis.call('PERSIST', keys[name])
  end
  if r.blobs then change_expiry_of_blobs(keys, 'PERSIST') end
  for _, index in ipairs(indexes_of(r, r.state)) do redis.call('PERSIST', index .. r.state) end
  redis.call('ZADD', archive, micros(r.at + tonumber(r.retention) * 1000000), task_tag(keys))
end

local function let_expire(keys, r)
  redis.call('ZREM', archive, task_tag(keys))
  redis.call('ZREM', archive_refused, task_tag(keys))
  expire_task(keys, r)
  for _, index in ipairs(indexes_of(r, r.state)) do redis.call('EXPIRE', index .. r.state, r.retention) end
end

for _, record in ipairs(page[2]) do
  if string.sub(record, 1, #prefix + 2) == prefix .. ':{' then
    local keys = keys_of(prefix, string.match(record, '{(.-)}'))
    local r = load_record(keys)
    local is_listed = r and TERMINAL[r.state] and redis.call('ZSCORE', r.scope_index .. r.state, task_tag(keys))
    if is_listed and (redis.call('TTL', keys.record) >= 0) == archives then
      changed = changed + 1
      if archives then list_for_archive(keys, r) else let_expire(keys, r) end
    end
  end
end
if page[1] == '0' then redis.call('HSET', installation, 'adopted', archives and '1' or '') end
return {page[1], changed}
