-- migrate_to_3: record the scopes of all listed tasks. Handles one page of the keyspace. Repeat the call until the cursor
-- is 0.
-- returns {next cursor, number of changed tasks}
-- requires: indexes, keys, tasks

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0

for _, record in ipairs(page[2]) do
  local is_ours = string.sub(record, 1, #prefix + 2) == prefix .. ':{'
  local r = is_ours and load_record(keys_of(prefix, string.match(record, '{(.-)}')))
  local recorded_at = r and tonumber(redis.call('ZSCORE', prefix .. ':scopes', r.scope) or 0)
  if r and recorded_at < r.at then
    changed = changed + 1
    if not is_dry_run then record_scope(r, r.at) end
  end
end
return {page[1], changed}
