-- requires: stored_bytes

-- A task's signals that no run has received yet are a list, oldest first. An entry consists of the length of the
-- name in four bytes (big-endian), the name and the payload.

local function add_signal_bytes(keys, r, bytes)
  r.signal_bytes = redis.call('HINCRBY', keys.record, 'signal_bytes', bytes)
  add_size(r, bytes)
end

local function push_signal(keys, r, entry)
  redis.call('RPUSH', keys.signals, entry)
  add_signal_bytes(keys, r, #entry)
end

-- Remove the oldest signal with the name `name` and return its payload, or nil if there is no such signal.
local function pop_signal(keys, r, name)
  if not r.signal_bytes then return nil end
  for _, entry in ipairs(redis.call('LRANGE', keys.signals, 0, -1)) do
    local entry_name, position = struct.unpack('>I4c0', entry)
    if entry_name == name then
      redis.call('LREM', keys.signals, 1, entry)
      add_signal_bytes(keys, r, -#entry)
      return string.sub(entry, position)
    end
  end
end
