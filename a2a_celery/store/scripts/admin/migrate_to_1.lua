-- migrate_to_1: records of a store without a schema say in fields of their own when their run begins, and which trace it
-- belongs to; some of the store's keys are looked at, so it is called until the cursor is 0.
-- KEYS  [1] installation
-- ARGV  [1] key prefix  [2] cursor  [3] about so many keys  [4] '1' to only count
-- returns {cursor of what follows, how many records were changed}
-- requires: options
local page = redis.call('SCAN', ARGV[2], 'MATCH', '*:{*}:task', 'COUNT', ARGV[3])
local changed = 0
for _, record in ipairs(page[2]) do
  if string.sub(record, 1, #ARGV[1] + 2) == ARGV[1] .. ':{' then
    local r = redis.call('HMGET', record, 'options', 'begins_at', 'trace')
    if r[1] and r[1] ~= '' and not (r[2] and r[3]) then
      changed = changed + 1
      if ARGV[4] ~= '1' then set_options(record, r[1]) end
    end
  end
end
return {page[1], changed}
