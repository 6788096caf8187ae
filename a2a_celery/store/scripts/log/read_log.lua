-- read_log: return the log entries after a version, in order.
-- KEYS  keys of the task
-- ARGV  version, maximum number of entries, µs at which the entry of that version was recorded ('' for unknown), bytes
--       after which the page ends; a page has at least one entry, and exceeds the bytes by at most the largest entry
-- returns {version, state, phase, entries, '0'} | {version, state, phase, {}, '1'}: the log does not have that entry
--       any more
--       | {'0', '0', '', {}, '0'}: the task does not exist
-- requires: log_lookup
local record, log = KEYS[1], KEYS[2]
local after, limit, recorded_us, max_bytes = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])

-- No entry is larger than `largest`, so each batch has the number of entries that fit in any case.
local function read_page(first, largest)
  if largest * limit <= max_bytes then return redis.call('LRANGE', log, first, first + limit - 1) end
  local entries, bytes = {}, 0
  repeat
    local fits = math.max(1, math.floor((max_bytes - bytes) / largest))
    local batch = redis.call('LRANGE', log, first + #entries, first + math.min(limit, #entries + fits) - 1)
    for _, entry in ipairs(batch) do
      entries[#entries + 1] = entry
      bytes = bytes + #entry
    end
  until #batch == 0 or #entries >= limit or bytes >= max_bytes
  return entries
end

local r = redis.call('HMGET', record, 'version', 'state', 'phase', 'largest')
if not r[1] then return {'0', '0', '', {}, '0'} end
local is_restored = after > tonumber(r[1]) or recorded_us ~= '' and not has_event(KEYS, after, recorded_us)
if is_restored then return {r[1], r[2], r[3], {}, '1'} end
return {r[1], r[2], r[3], read_page(after, tonumber(r[4] or 0)), '0'}
