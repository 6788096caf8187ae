-- read_log: return the log entries after a version, in order.
-- KEYS  keys of the task
-- ARGV  version, maximum number of entries, µs at which the entry of that version was recorded ('' for unknown), bytes
--       after which the page ends. A page has at least one entry, and exceeds the bytes by at most the largest entry.
-- returns {version, state, phase, entries, '0'} | {version, state, phase, {}, '1'}: the log no longer has the entry of
--       that version
--       | {'0', '0', '', {}, '0'}: the task does not exist
-- requires: log_lookup, packed
local record, log = KEYS[1], KEYS[2]
local after, limit, recorded_us, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

-- Return up to `count` entries after the first `first` entries.
local function read_entries(r, first, count)
  if not r.packed then return redis.call('LRANGE', log, first, first + count - 1) end
  return {unpack(unpack_task(KEYS, r), first + 1, math.min(first + count, r.version))}
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

local v = redis.call('HMGET', record, 'version', 'state', 'phase', 'largest', 'packed', 'task_id', 'context', 'at')
if not v[1] then return {'0', '0', '', {}, '0'} end
local r = {version = tonumber(v[1]), largest = tonumber(v[4] or 0), packed = v[5], task_id = v[6], context = v[7],
  at = v[8]}
local is_restored = after > r.version or recorded_us ~= '' and not has_event(KEYS, r, after, recorded_us)
if is_restored then return {v[1], v[2], v[3] or '', {}, '1'} end
return {v[1], v[2], v[3] or '', read_page(r, after), '0'}
