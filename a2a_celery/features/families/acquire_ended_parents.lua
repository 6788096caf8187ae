-- acquire_ended_parents: return the children to cancel of tasks that ended without a result, and of turns that messages
-- interrupted, each to one watcher. A parent is due again until it has no live child that is cancelled with it. The
-- children do not change.
-- returns {id of the parent, id, context and scope of a child, …}. Parents without such children are removed from the
--       list.
-- requires: cleanup, full_store, keys, states, time

allow_on_full_store(ended_parents)
local reply = {}
for _, tag in ipairs(redis.call('ZRANGEBYSCORE', ended_parents, '-inf', micros(now()), 'LIMIT', 0, limit)) do
  local record, is_live = keys_of(prefix, tag).record, false
  local parent = redis.call('HMGET', record, 'task_id', 'state', 'children', 'interrupted_turn')
  local has_ended, interrupted_turn = parent[2] and ends_without_result(tonumber(parent[2])), tonumber(parent[4] or '0')
  for child in string.gmatch(parent[3] or '', '%S+') do
    local r = string.find(child, '!', 1, true) and {} or
      redis.call('HMGET', keys_of(prefix, child).record, 'state', 'task_id', 'context', 'scope', 'resumes', 'called')
    local is_interrupted = r[5] and tonumber(string.match(r[5], '^%d+')) <= interrupted_turn
    local is_kept = not has_ended or r[6] and redis.call('HEXISTS', record, 'request') == 1
    if r[1] and not TERMINAL[tonumber(r[1])] and (is_interrupted or not is_kept) then
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
