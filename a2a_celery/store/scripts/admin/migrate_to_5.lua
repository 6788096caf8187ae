-- migrate_to_5: remove the fields that load_record derives, and convert tasks with children. Handles one page of the
-- keyspace. Repeat the call until the cursor is 0.
-- returns {next cursor, number of changed tasks}
-- requires: keys, tasks, time

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0

-- Let the children for which a task waits resume its run, and let the task join the list of ended parents.
local function convert_children(keys, r)
  local interrupted = ' ' .. (r.children_at_interrupt or '')
  for child in string.gmatch(r.children, '[^ !]+') do
    local record = keys_of(prefix, child).record
    if redis.call('HDEL', record, 'awaited') == 1 then
      local turn = string.find(interrupted, ' ' .. child .. ' ', 1, true) and r.turn - 1 or r.turn
      local signal = 'child/' .. redis.call('HGET', record, 'task_id')
      redis.call('HSET', record, 'resumes', micros(turn) .. ' ' .. task_tag(keys) .. ' ' .. signal)
    end
  end
  redis.call('HSET', keys.record, 'cleanup', 'ended_parents')
  if redis.call('HDEL', keys.record, 'children_at_interrupt') == 1 then
    redis.call('HSET', keys.record, 'interrupted_turn', micros(r.turn - 1))
  end
end

for _, record in ipairs(page[2]) do
  local keys = string.sub(record, 1, #prefix + 2) == prefix .. ':{' and keys_of(prefix, string.match(record, '{(.-)}'))
  local r = keys and load_record(keys)
  local has_children = r and r.children and not r.cleanup
  local has_derived = r and redis.call('HEXISTS', record, 'leases') == 1
  if has_children or has_derived then changed = changed + 1 end
  if has_children and not is_dry_run then convert_children(keys, r) end
  if has_derived and not is_dry_run then
    for field in pairs(DERIVED) do redis.call('HDEL', record, field) end
  end
end
return {page[1], changed}
