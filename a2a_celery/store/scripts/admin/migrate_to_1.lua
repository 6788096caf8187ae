-- migrate_to_1: in records of a store without a schema, store the start time and the trace of a run in separate fields.
-- Handles one page of the keyspace. Repeat the call until the cursor is 0.
-- returns {next cursor, number of changed records}
-- requires: options

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0
for _, record in ipairs(page[2]) do
  if string.sub(record, 1, #prefix + 2) == prefix .. ':{' then
    local r = redis.call('HMGET', record, 'options', 'begins_at', 'trace')
    if r[1] and r[1] ~= '' and not (r[2] and r[3]) then
      changed = changed + 1
      if not is_dry_run then set_options(record, r[1]) end
    end
  end
end
return {page[1], changed}
