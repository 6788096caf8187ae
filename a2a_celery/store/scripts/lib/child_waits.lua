-- requires: family, keys, states, suspension, tasks

-- A run that waits for a child task is suspended until it receives the signal "child/<id of the child>". The script
-- that ends or interrupts the child resumes the run. No client can send a signal with such a name.

-- Return true if the child whose id is in the name of a signal has ended, waits for its client, or does not exist.
local function is_child_final(keys, signal)
  local id = string.match(signal, '^child/(.+)$')
  if not id then return false end
  local state = redis.call('HGET', keys_of(prefix_of(keys), quoted(id)).record, 'state')
  return not state or TERMINAL[tonumber(state)] or INTERRUPTED[tonumber(state)] or false
end

-- Resume the run of the parent if that run waits for this task. This task has ended or waits for its client.
local function resume_parent(keys, r)
  if not r.parent then return end
  if INTERRUPTED[r.state] then redis.call('HDEL', keys.record, 'awaited') end
  local parent_keys = keys_of(prefix_of(keys), quoted(r.parent))
  local parent = load_record(parent_keys)
  if not parent or parent.phase ~= 'suspended' or parent.wait_signal ~= 'child/' .. r.task_id then return end
  resume_run(parent_keys, parent, '', 0)
  save_record(parent_keys, parent)
end
