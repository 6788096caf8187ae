-- read_family: return a task with its parent and its children.
-- returns nil: the task does not exist | {task, parent ({} for none), child, …}, each as {id, agent, state, '1' if it
--       is cancelled with its parent}. For a parent that is not in the store, agent and state are ''. Children that are
--       not in the store are omitted.
-- requires: keys

-- Return the task with the tag `tag`, or nil if it is not in the store.
local function relative(tag, cancels)
  local r = redis.call('HMGET', keys_of(prefix, tag).record, 'task_id', 'agent', 'state')
  if not r[1] then return nil end
  return {r[1], r[2] or '', r[3] or '', cancels}
end

local own = redis.call('HMGET', keys.record, 'scope', 'parent', 'children')
if not own[1] or (scope ~= '*' and own[1] ~= scope) then return nil end
local parent = own[2] and (relative(quoted(own[2]), '1') or {own[2], '', '', '1'}) or {}
local family = {relative(task_tag(keys), '1'), parent}
for child in string.gmatch(own[3] or '', '%S+') do
  local tag = string.match(child, '^[^!]+')
  family[#family + 1] = relative(tag, child == tag and '1' or '0')
end
return family
