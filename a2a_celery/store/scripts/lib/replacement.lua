-- requires: artifacts, log, status, stored_bytes, tasks

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
