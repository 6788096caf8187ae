-- requires: stored_bytes

local function add_chunk(keys, r, artifact_id, append, bytes)
  local chunks = keys.chunks .. artifact_id
  if redis.call('EXISTS', chunks) == 0 then
    redis.call('RPUSH', keys.artifacts, artifact_id)
  elseif append ~= '1' then
    redis.call('DEL', chunks)
  end
  redis.call('RPUSH', chunks, bytes)
  add_size(r, #bytes)
end
