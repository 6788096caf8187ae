-- requires: packed, time

-- Return a table with scope, state and the other fields of the record that `snapshot` reads, or nil if the task does
-- not exist.
local function load_summary(keys)
  local v = redis.call('HMGET', keys.record, 'task_id', 'scope', 'context', 'version', 'at', 'status', 'has_message', 'state', 'size',
    'recorded_at', 'packed')
  return v[1] and {task_id = v[1], scope = v[2], context = v[3], version = tonumber(v[4]), at = v[5], status = v[6],
    has_message = v[7] or '0', state = tonumber(v[8]), size = tonumber(v[9] or 0), recorded_at = v[10] or v[5],
    packed = v[11]}
end

-- Number of entries of histories and artifacts that this call may still read. The number is limited, because a script
-- blocks Redis and long tables are slow in Redis 6.2.
local entries_left = 1000

-- Return the newest `newest` entries of a list, or all entries if `newest` is nil. Return nil if there are more entries
-- than may be read.
local function read_entries(list, newest)
  if entries_left < 0 then return nil end
  local first = newest and -math.min(newest, entries_left + 1) or 0
  local entries = redis.call('LRANGE', list, first, newest and -1 or entries_left)
  entries_left = entries_left - #entries
  return entries_left >= 0 and entries or nil
end

-- Return the newest `newest` entries of the history, or nil; see read_entries. A client's message is only in the log: the
-- history has the number of its log entry.
local function read_history(keys, newest)
  local history = read_entries(keys.history, newest)
  for i, entry in ipairs(history or {}) do
    if string.find(entry, '^%d+$') then
      local logged = redis.call('LINDEX', keys.log, entry - 1)
      history[i] = string.sub(logged, start_of_event(logged))
    end
  end
  return history
end

-- Return the history, and the chunks of each artifact. Return nil if there are more entries than may be read.
local function read_contents(keys, history_length, with_artifacts)
  local history, artifacts = {}, {}
  if history_length ~= 0 then
    history = read_history(keys, history_length > 0 and history_length or nil)
    if not history then return nil end
  end
  if with_artifacts then
    local artifact_ids = read_entries(keys.artifacts)
    if not artifact_ids then return nil end
    for i, artifact_id in ipairs(artifact_ids) do
      artifacts[i] = read_entries(keys.chunks .. artifact_id)
      if not artifacts[i] then return nil end
    end
  end
  return history, artifacts
end

-- Return the log entries of a packed task, or nil if there are more entries than may be read.
local function read_packed(keys, r)
  entries_left = entries_left - r.version
  return entries_left >= 0 and unpack_task(keys, r) or nil
end

-- Return the snapshot of a task with the id of its newest entry. A negative history_length means the whole history. If
-- the task is too long for one call, the snapshot contains the arguments and the keys of record and log instead of the
-- contents; see store/log/long_tasks.py. For a packed task with requested contents, the snapshot contains the log
-- entries.
local function snapshot(keys, r, history_length, with_artifacts)
  local event_id = micros(r.version) .. '-' .. micros(r.recorded_at or 0)
  local entries, history, artifacts
  if r.packed and (history_length ~= 0 or with_artifacts) then
    entries = read_packed(keys, r)
  else
    history, artifacts = read_contents(keys, history_length, with_artifacts)
  end
  if entries then return {event_id, micros(history_length), with_artifacts and '1' or '0', entries} end
  if not r.status then r.status = unpack_status(keys) end
  if not history then
    return {
      r.task_id, r.context, event_id, micros(r.at), r.status, r.has_message, micros(history_length),
      with_artifacts and '1' or '0', keys.record, keys.log,
    }
  end
  return {
    r.task_id, r.context, event_id, micros(r.at), r.status, r.has_message, history,
    redis.call('HGETALL', keys.metadata), artifacts,
  }
end
