-- update_archive_backlog: where archiving begins, tasks that ended before it wait for the archive as well; where it is given up, those
-- that wait expire again. Some of the store's keys are looked at, so it is called until the cursor is 0.
-- KEYS  [1] installation  [2] archive  [3] archive refused
-- ARGV  [1] key prefix  [2] cursor  [3] about so many keys
-- returns {cursor of what follows, how many tasks were changed}
-- requires: full_store, keys, retirement, states, stored_bytes, tasks, time
allow_on_full_store(KEYS[1])
local keeps = redis.call('HGET', KEYS[1], 'archive') == '1'
local page = redis.call('SCAN', ARGV[2], 'MATCH', '*:{*}:task', 'COUNT', ARGV[3])
local changed = 0

local function keep(keys, r)
  if r.quota_account then redis.call('ZREM', stored_key(r) .. ':expiring', expiring_entry(keys, r)) end
  for _, artifact_id in ipairs(redis.call('LRANGE', keys[4], 0, -1)) do redis.call('PERSIST', keys[5] .. artifact_id) end
  for _, i in ipairs({1, 2, 3, 4, 6, 9, 10}) do redis.call('PERSIST', keys[i]) end
  for _, index in ipairs({r.scope_index, r.context_index}) do redis.call('PERSIST', index .. r.state) end
  redis.call('ZADD', KEYS[2], micros(r.at + tonumber(r.retention) * 1000000), task_tag(keys))
end

local function give_up(keys, r)
  redis.call('ZREM', KEYS[2], task_tag(keys))
  redis.call('ZREM', KEYS[3], task_tag(keys))
  expire_task(keys, r)
  for _, index in ipairs({r.scope_index, r.context_index}) do redis.call('EXPIRE', index .. r.state, r.retention) end
end

for _, record in ipairs(page[2]) do
  if string.sub(record, 1, #ARGV[1] + 2) == ARGV[1] .. ':{' then
    local keys = keys_of(ARGV[1], string.match(record, '{(.-)}'))
    local r = load_record(keys)
    local listed = r and TERMINAL[r.state] and redis.call('ZSCORE', r.scope_index .. r.state, task_tag(keys))
    if listed and (redis.call('TTL', keys[1]) >= 0) == keeps then
      changed = changed + 1
      if keeps then keep(keys, r) else give_up(keys, r) end
    end
  end
end
if page[1] == '0' then redis.call('HSET', KEYS[1], 'adopted', keeps and '1' or '') end
return {page[1], changed}
