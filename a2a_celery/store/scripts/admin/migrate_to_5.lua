-- migrate_to_5: remove the fields that load_record derives. Handles one page of the keyspace. Repeat the call until the
-- cursor is 0.
-- returns {next cursor, number of changed tasks}
-- requires: tasks

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0
for _, record in ipairs(page[2]) do
  if string.sub(record, 1, #prefix + 2) == prefix .. ':{' and redis.call('HEXISTS', record, 'leases') == 1 then
    changed = changed + 1
    if not is_dry_run then
      for field in pairs(DERIVED) do redis.call('HDEL', record, field) end
    end
  end
end
return {page[1], changed}
