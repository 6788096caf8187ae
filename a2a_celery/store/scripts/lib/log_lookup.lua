-- requires: packed

local function log_entry(keys, r, version)
  if r.packed then return unpack_task(keys, r)[version] end
  return redis.call('LINDEX', keys.log, version - 1)
end

-- Return true if the log entry with the number `version` was recorded at recorded_us (a string).
local function has_event(keys, r, version, recorded_us)
  local entry = log_entry(keys, r, version)
  return entry and string.match(entry, '^%d+') == recorded_us
end
