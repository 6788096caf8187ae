-- requires: stored_bytes

-- The signals of a task that no run has received yet are a list, the oldest first. Each entry is the name after its
-- length in four bytes (big-endian), then the payload.

local function add_signal_bytes(keys, r, bytes)
  r.signal_bytes = redis.call('HINCRBY', keys[1], 'signal_bytes', bytes)
  add_size(r, bytes)
end

local function push_signal(keys, r, entry)
  redis.call('RPUSH', keys[12], entry)
  add_signal_bytes(keys, r, #entry)
end

-- Remove and return the payload of the oldest signal with this name, or return nil.
local function pop_signal(keys, r, name)
  if not r.signal_bytes then return nil end
  for _, entry in ipairs(redis.call('LRANGE', keys[12], 0, -1)) do
    local entry_name, position = struct.unpack('>I4c0', entry)
    if entry_name == name then
      redis.call('LREM', keys[12], 1, entry)
      add_signal_bytes(keys, r, -#entry)
      return string.sub(entry, position)
    end
  end
end
