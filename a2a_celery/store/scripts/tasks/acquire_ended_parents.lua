-- acquire_ended_parents: return the children to cancel of tasks that ended without a result, each to one watcher. A
-- parent is due again until it has no live child that is cancelled with it. The tasks do not change.
-- KEYS  list of ended parents
-- ARGV  key prefix, maximum number of parents, µs until a parent is due again
-- returns {id of the parent, id, context and scope of a child, …}. Parents without such children are removed from the
--       list.
-- requires: full_store, keys, states, time
local ended_parents = KEYS[1]
local prefix, limit, delay_us = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

allow_on_full_store(ended_parents)
local reply = {}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', ended_parents, '-inf', micros(now()), 'LIMIT', 0, limit)) do
  local parent, is_live = redis.call('HMGET', keys_of(prefix, tag)[1], 'task_id', 'children'), false
  for child in string.gmatch(parent[2] or '', '%S+') do
    local r = string.find(child, '!', 1, true) and {} or
      redis.call('HMGET', keys_of(prefix, child)[1], 'state', 'task_id', 'context', 'scope')
    if r[1] and not TERMINAL[tonumber(r[1])] then
      is_live = true
      for _, value in ipairs({parent[1], r[2], r[3], r[4]}) do reply[#reply + 1] = value end
    end
  end
  if is_live then
    redis.call('ZADD', ended_parents, micros(now() + delay_us), tag)
  else
    redis.call('ZREM', ended_parents, tag)
  end
end
return reply
