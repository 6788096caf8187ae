-- requires: expiry, keys, time

-- A cursor is the position of a reader in the log of a task. Features add cursors. In lists, the name of a cursor is
-- "<tag of its task> <quoted id of the cursor>". The hash `cursors` has the fields of the cursors of a task, each with the
-- prefix "<quoted id of the cursor>:". The core reads these fields:
--   delivered        version of the last event that the reader has received
--   secret, listed   keys of further lists with the cursor, scored like `dead_deliveries`; `listed` may be absent
-- Fields of the record; absent without cursors:
--   enabled_configs  quoted ids of the cursors that are due after each event, each followed by a space
--   deliveries       key of the list of cursors with events after their position, scored by the time at which they are due
--   dead_deliveries  key of the list of cursors that have stopped, scored by the time at which the task expires, or inf

-- Return the quoted ids of a task's cursors.
local function cursor_ids(keys)
  local ids = {}
  for _, field in ipairs(redis.call('HKEYS', keys.cursors)) do
    ids[#ids + 1] = string.match(field, '^(.*):delivered$')
  end
  table.sort(ids)
  return ids
end

-- Let all cursors that read each event be due now. A cursor that is already due at some time keeps this time.
local function schedule_cursors(keys, r)
  r.cursors_scheduled = true
  local new = 0
  for id in string.gmatch(r.enabled_configs, '%S+') do
    new = new + redis.call('ZADD', r.deliveries, 'NX', micros(now()), task_tag(keys) .. ' ' .. id)
  end
  if new > 0 then redis.call('PUBLISH', r.deliveries .. ':notifications', '') end
end

-- Let the cursors of an ended task expire with the task, after `seconds`.
local function expire_cursors(keys, r, seconds)
  local at = micros(now() + tonumber(seconds) * 1000000)
  for _, id in ipairs(cursor_ids(keys)) do
    for _, list in ipairs({r.dead_deliveries, redis.call('HGET', keys.cursors, id .. ':secret'),
      redis.call('HGET', keys.cursors, id .. ':listed') or nil}) do
      redis.call('ZADD', list, 'XX', at, task_tag(keys) .. ' ' .. id)
      prune_expired(list)
    end
  end
  redis.call('EXPIRE', keys.cursors, seconds)
end

-- Delete the cursors of a task.
local function delete_cursors(keys, r)
  for _, id in ipairs(cursor_ids(keys)) do redis.call('ZREM', r.deliveries, task_tag(keys) .. ' ' .. id) end
  expire_cursors(keys, r, 0)
end
