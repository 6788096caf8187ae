-- read_log: return the log entries after a version, in order.
-- returns {version, state, entries, '0'} | {version, state, {}, '1'}: the log no longer has the entry of that version
--       | {'0', '0', {}, '0'}: the task does not exist
-- requires: log_lookup, packed

-- Return up to `count` entries after the first `first` entries.
local function read_entries(r, first, count)
  if not r.packed then return redis.call('LRANGE', keys.log, first, first + count - 1) end
  return {unpack(unpack_task(keys, r), first + 1, math.min(first + count, r.version))}
end

-- Read a page in batches. The length of a batch assumes that each entry has `largest` bytes, so that only the last
-- entry of a page can exceed the limit.
local function read_page(r, first)
  if r.largest * limit <= max_bytes then return read_entries(r, first, limit) end
  local entries, bytes = {}, 0
  repeat
    local fits = math.max(1, math.floor((max_bytes - bytes) / r.largest))
    local batch = read_entries(r, first + #entries, math.min(limit - #entries, fits))
    for _, entry in ipairs(batch) do
      entries[#entries + 1] = entry
      bytes = bytes + #entry
    end
  until #batch == 0 or #entries >= limit or bytes >= max_bytes
  return entries
end

local v = redis.call('HMGET', keys.record, 'version', 'state', 'largest', 'packed', 'task_id', 'context')
if not v[1] then return {'0', '0', {}, '0'} end
local r = {version = tonumber(v[1]), largest = tonumber(v[3] or 0), packed = v[4], task_id = v[5], context = v[6]}
local is_restored = after > r.version or recorded_us ~= '0' and not has_event(keys, r, after, recorded_us)
if is_restored then return {v[1], v[2], {}, '1'} end
return {v[1], v[2], read_page(r, after), '0'}
