-- migrate_to_2: limits by owner hold in all tenants together: the stored bytes of a task count for its account, and a live task of
-- an owner in a tenant stands in the owner's list; some of the store's keys are looked at, so it is called until the cursor is 0.
-- KEYS  [1] installation
-- ARGV  [1] key prefix  [2] cursor  [3] about so many keys  [4] '1' to only count
-- returns {cursor of what follows, how many records were changed}
-- requires: indexes, keys, stored_bytes, tasks, time
local page = redis.call('SCAN', ARGV[2], 'MATCH', '*:{*}:task', 'COUNT', ARGV[3])
local changed, writes = 0, ARGV[4] ~= '1'

local function recount(keys, r)
  local expiring, before = stored_key(r) .. ':expiring', string.match(r.scope, '/(.*)$')
  r.quota_account = before
  local expires_at = redis.call('ZSCORE', expiring, expiring_entry(keys, r))
  redis.call('ZREM', expiring, expiring_entry(keys, r))
  add_to_sums(stored_key(r), before, -r.size)
  r.quota_account = account_of(r.scope)
  add_to_sums(stored_key(r), r.quota_account, r.size)
  if expires_at then redis.call('ZADD', expiring, expires_at, expiring_entry(keys, r)) end
  redis.call('HSET', keys[1], 'quota_account', r.quota_account)
end

for _, record in ipairs(page[2]) do
  local keys = string.sub(record, 1, #ARGV[1] + 2) == ARGV[1] .. ':{' and keys_of(ARGV[1], string.match(record, '{(.-)}'))
  local r = keys and load_record(keys)
  if r then
    local recounts = r.quota_account == '1'
    local owners = indexes_of(r, r.state)[3]
    local unlisted = owners and not redis.call('ZSCORE', owners .. r.state, task_tag(keys))
    if recounts or unlisted then changed = changed + 1 end
    if recounts and writes then recount(keys, r) end
    if unlisted and writes then redis.call('ZADD', owners .. r.state, micros(r.at), task_tag(keys)) end
  end
end
return {page[1], changed}
