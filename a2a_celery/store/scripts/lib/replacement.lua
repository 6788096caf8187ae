-- requires: artifacts, blobs, events, log, runs, status, stored_bytes, tasks, time

-- Replace the whole task. Arguments from ARGV[first] on: task event, state, status event, '1' if the status has a
-- message, packed metadata, number of history events, history events, and pairs of artifact id and chunk.
local function replace_task(keys, r, first)
  local at = next_timestamp(r)
  append_entry(keys, r, at, ARGV[first])
  for _, artifact_id in ipairs(redis.call('LRANGE', keys[4], 0, -1)) do redis.call('DEL', keys[5] .. artifact_id) end
  redis.call('DEL', keys[3], keys[4], keys[6])
  r.has_message = '0'
  set_status(keys, r, tonumber(ARGV[first + 1]), ARGV[first + 3], ARGV[first + 2], at)
  merge_metadata(keys, ARGV[first + 4])
  local history = first + 6
  local artifacts = history + tonumber(ARGV[first + 5])
  for i = history, artifacts - 1 do
    redis.call('RPUSH', keys[3], ARGV[i])
    add_size(r, #ARGV[i])
  end
  for i = artifacts, #ARGV, 2 do add_chunk(keys, r, ARGV[i], '0', ARGV[i + 1]) end
end

-- Apply the last events that a run writes before it leaves its worker. If ARGV has the arguments of replace_task after
-- the events, replace the task first. `before` is the number of the run's confirmed events. Small events are written
-- even to a full store. Return nil, or the reply of the script if nothing was written: {'lost', see missing_events} |
-- {'illegal', number of the event, state}.
local function apply_last_events(keys, r, before, first, last)
  local missing = missing_events(keys, r, before)
  if missing then return {'lost', missing} end
  local illegal = first_illegal(r, first, last)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  local replacement_bytes = 0
  for i = last + 1, #ARGV do replacement_bytes = replacement_bytes + #ARGV[i] end
  allow_small_write(keys, first, replacement_bytes, last)
  add_size(r, adopt_blobs(keys, r))
  if #ARGV > last then replace_task(keys, r, last + 1) end
  apply_events(keys, r, first, last)
end
