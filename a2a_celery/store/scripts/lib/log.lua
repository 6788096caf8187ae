-- requires: keys, notifications, stored_bytes, time

-- Schedule an immediate delivery to each enabled config. A cursor that is already scheduled keeps its due time.
local function schedule_deliveries(keys, r)
  r.deliveries_scheduled = true
  local new = 0
  for config in string.gmatch(r.enabled_configs, '%S+') do
    new = new + redis.call('ZADD', r.deliveries, 'NX', micros(now()), task_tag(keys) .. ' ' .. config)
  end
  if new > 0 then redis.call('PUBLISH', r.deliveries .. ':notifications', '') end
end

local function append_entry(keys, r, at, bytes)
  r.version, r.recorded_at = r.version + 1, at
  local entry = micros(at) .. ' ' .. bytes
  redis.call('RPUSH', keys.log, entry)
  add_size(r, #entry)
  r.largest = math.max(r.largest or 0, #entry)
  if r.reply_channel and r.final_only ~= '1' then buffer_inline_entry(r, entry) end
  if r.enabled_configs and not r.deliveries_scheduled then schedule_deliveries(keys, r) end
end
