-- requires: cursors, notifications, stored_bytes, time

local function append_entry(keys, r, at, bytes)
  r.version, r.recorded_at = r.version + 1, at
  local entry = micros(at) .. ' ' .. bytes
  redis.call('RPUSH', keys.log, entry)
  add_size(r, #entry)
  r.largest = math.max(r.largest or 0, #entry)
  if r.reply_channel and r.final_only ~= '1' then buffer_inline_entry(r, entry) end
  if r.enabled_configs and not r.cursors_scheduled then schedule_cursors(keys, r) end
end
