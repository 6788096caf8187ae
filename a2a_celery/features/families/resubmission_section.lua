-- families: move the called children of a resubmitted task to the new task if it continues with the journal. A watcher
-- cancels the other children.
-- requires: children, keys

local function resubmitted(families, old_keys, old, keys, task_id, continues)
  if continues and old.depth then redis.call('HSET', keys.record, 'depth', old.depth) end
  if not old.children then return end
  if continues then
    local called, others = {}, {}
    for child in string.gmatch(old.children, '%S+') do
      local record = keys_of(prefix_of(keys), string.match(child, '^[^!]+')).record
      local is_called = redis.call('HEXISTS', record, 'called') == 1
      local list = is_called and called or others
      list[#list + 1] = child .. ' '
      if is_called then redis.call('HSET', record, 'parent', task_id) end
    end
    if #called > 0 then save_children(keys, table.concat(called)) end
    redis.call('HSET', old_keys.record, 'children', table.concat(others))
  end
  cancel_children(old_keys)
end
