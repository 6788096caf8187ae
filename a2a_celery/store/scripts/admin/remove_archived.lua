-- remove_archived: tasks whose copies are in the archive leave the lists and the store, in one step with the border, so that a
-- reader who lists both finds each of them once. One to whose webhooks something is owed stays for that, unlisted.
-- KEYS  [1] archive  [2] installation  [3] deliveries  [4] dead letters
-- ARGV  [1] key prefix  [2] s for which it stays where something is owed  [3…] the tags of the tasks' keys
-- returns how many
-- requires: deletion, indexes, keys, metrics, retirement, states, tasks, time
local function is_owed(keys, r)
  for config in string.gmatch(r.enabled_configs or '', '%S+') do
    if redis.call('ZSCORE', KEYS[3], task_tag(keys) .. ' ' .. config) then return true end
  end
  return false
end

local border, gone = tonumber(redis.call('HGET', KEYS[2], 'border') or '0'), 0
for i = 3, #ARGV do
  local keys = keys_of(ARGV[1], ARGV[i])
  local r = load_record(keys)
  if r and TERMINAL[r.state] and redis.call('ZREM', KEYS[1], ARGV[i]) == 1 then
    gone, border = gone + 1, math.max(border, r.at)
    remove_from_indexes(keys, r, r.state)
    redis.call('ZREM', KEYS[4], ARGV[i])
    count_metric(r, 'archived', 'tasks')
    if is_owed(keys, r) then
      redis.call('HDEL', keys[1], 'request', 'caller', 'options', 'begins_at')
      r.retention = ARGV[2]
      redis.call('HSET', keys[1], 'retention', ARGV[2])
      expire_task(keys, r)
    else
      delete_task(keys, r)
    end
  end
end
if gone > 0 then redis.call('HSET', KEYS[2], 'border', micros(border)) end
return gone
