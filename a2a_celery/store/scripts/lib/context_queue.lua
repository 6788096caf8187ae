-- requires: keys, runs, time

-- Return true if another run of the context comes first. The queue of a context contains the tags of its tasks that
-- have open runs. Only the run of the first task is published. The other queued runs are in the list of blocked runs.
local function is_blocked(keys, r)
  if not r.context_queue then return false end
  local first = redis.call('LINDEX', r.context_queue, 0)
  return first and first ~= task_tag(keys)
end

-- Remove the task from the queue of its context. A watcher publishes the run that is unblocked after after_us. Return
-- the id, run and options of the unblocked task, or three times '' if no task is unblocked.
local function leave_context_queue(keys, r, after_us)
  if not r.context_queue then return '', '', '' end
  local first = redis.call('LINDEX', r.context_queue, 0)
  redis.call('LREM', r.context_queue, 1, task_tag(keys))
  redis.call('ZREM', r.dispatch .. ':blocked', run_name(r))
  if first ~= task_tag(keys) then return '', '', '' end
  local prefix = prefix_of(keys)
  first = redis.call('LINDEX', r.context_queue, 0)
  while first do
    local next = redis.call('HMGET', keys_of(prefix, first).record, 'task_id', 'run', 'phase', 'options')
    if next[3] == 'queued' then
      local name = next[1] .. '.' .. next[2]
      redis.call('ZREM', r.dispatch .. ':blocked', name)
      redis.call('ZADD', r.dispatch, micros(now() + after_us), name)
      redis.call('HSET', keys_of(prefix, first).record, 'unblocked_at', micros(now()))
      return next[1], next[2], next[4] or ''
    end
    redis.call('LPOP', r.context_queue) -- the task does not exist
    first = redis.call('LINDEX', r.context_queue, 0)
  end
  return '', '', ''
end
