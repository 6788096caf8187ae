-- migrate_to_2: apply the limits of an owner across tenants. The stored bytes of each task are moved to the account of
-- its owner, and live tasks of owners in tenants are added to the owner's index. Handles one page of the keyspace.
-- Repeat the call until the cursor is 0.
-- returns {next cursor, number of changed records}
-- requires: indexes, keys, stored_bytes, tasks, time

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0

local function move_to_account(keys, r)
  local expiring, before = stored_key(r) .. ':expiring', string.match(r.scope, '/(.*)$')
  r.quota_account = before
  local expiry = redis.call('ZSCORE', expiring, expiring_entry(keys, r))
  redis.call('ZREM', expiring, expiring_entry(keys, r))
  add_to_sums(stored_key(r), before, -r.size)
  r.quota_account = account_of(r.scope)
  add_to_sums(stored_key(r), r.quota_account, r.size)
  if expiry then redis.call('ZADD', expiring, expiry, expiring_entry(keys, r)) end
  redis.call('HSET', keys.record, 'quota_account', r.quota_account)
end

for _, record in ipairs(page[2]) do
  local is_ours = string.sub(record, 1, #prefix + 2) == prefix .. ':{'
  local keys = is_ours and keys_of(prefix, string.match(record, '{(.-)}'))
  local r = keys and load_record(keys)
  if r then
    local is_counted = r.quota_account == '1'
    local owner_index = owner_index_of(r, r.state)
    local is_unlisted = owner_index and not redis.call('ZSCORE', owner_index .. r.state, task_tag(keys))
    if is_counted or is_unlisted then changed = changed + 1 end
    if is_counted and not is_dry_run then move_to_account(keys, r) end
    if is_unlisted and not is_dry_run then redis.call('ZADD', owner_index .. r.state, micros(r.at), task_tag(keys)) end
  end
end
return {page[1], changed}
