-- Return true if the log entry of that version was recorded at recorded_us (a text).
local function has_event(keys, version, recorded_us)
  local entry = redis.call('LINDEX', keys[2], version - 1)
  return entry and string.match(entry, '^%d+') == recorded_us
end
