-- requires: artifacts, blobs, events, log, runs, status, stored_bytes, tasks, time

-- Replace the whole task. `task` is a table with the fields of TaskArguments in store/codec.py.
local function replace_task(keys, r, task)
  local at = next_timestamp(r)
  append_entry(keys, r, at, task.event)
  for _, artifact_id in ipairs(redis.call('LRANGE', keys.artifacts, 0, -1)) do redis.call('DEL', keys.chunks .. artifact_id) end
  redis.call('DEL', keys.history, keys.artifacts, keys.metadata)
  r.has_message = '0'
  set_status(keys, r, task.state, task.has_message, task.status, at)
  merge_metadata(keys, task.metadata)
  for _, message in ipairs(task.history) do
    redis.call('RPUSH', keys.history, message)
    add_size(r, #message)
  end
  for _, artifact in ipairs(task.artifacts) do add_chunk(keys, r, artifact.id, '0', artifact.content) end
end

-- Return the bytes of the contents that replace_task stores.
local function size_of_replacement(task)
  local bytes = #task.event + #task.status + #task.metadata
  for _, message in ipairs(task.history) do bytes = bytes + #message end
  for _, artifact in ipairs(task.artifacts) do bytes = bytes + #artifact.content end
  return bytes
end

-- Apply the last events that a run writes before it leaves its worker. Replace the task first, unless `replacement` is
-- nil. `before` is the number of the run's confirmed events. Small events are written even to a full store. Return nil, or the reply of the script if nothing was written: the error of missing_blobs |
-- {'lost', see missing_events} | {'illegal', number of the event, state}.
local function apply_last_events(keys, r, before, events, replacement)
  local missing_blob = missing_blobs(keys)
  if missing_blob then return missing_blob end
  local missing = missing_events(keys, r, before)
  if missing then return {'lost', missing} end
  local illegal = first_illegal(r, events)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  allow_small_write(keys, events, replacement and size_of_replacement(replacement))
  add_size(r, keep_blobs(keys, r))
  if replacement then replace_task(keys, r, replacement) end
  apply_events(keys, r, events)
end
