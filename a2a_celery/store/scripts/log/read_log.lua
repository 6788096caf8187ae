-- read_log: the entries after a version, in order.
-- KEYS  a task's ten
-- ARGV  [1] after this version  [2] at most this many  [3] µs at which the entry of that version was recorded, '' for unknown
--       [4] bytes after which the page ends; it has one entry at least, and at most the largest entry more
-- returns {version, state, phase, entries, '1' if the log does not have that entry any more: then without entries};
--       {'0', '0', '', {}, '0'} when there is no such task
-- requires: log_lookup

-- Up to `limit` entries from place `first` on. None is larger than `largest`, so a batch is as large as surely fits.
local function read_page(first, limit, most, largest)
  if largest * limit <= most then return redis.call('LRANGE', KEYS[2], first, first + limit - 1) end
  local entries, bytes = {}, 0
  repeat
    local fits = math.max(1, math.floor((most - bytes) / largest))
    local batch = redis.call('LRANGE', KEYS[2], first + #entries, first + math.min(limit, #entries + fits) - 1)
    for _, entry in ipairs(batch) do
      entries[#entries + 1] = entry
      bytes = bytes + #entry
    end
  until #batch == 0 or #entries >= limit or bytes >= most
  return entries
end

local r = redis.call('HMGET', KEYS[1], 'version', 'state', 'phase', 'largest')
if not r[1] then return {'0', '0', '', {}, '0'} end
local after = tonumber(ARGV[1])
local restored = after > tonumber(r[1]) or ARGV[3] ~= '' and not has_event(KEYS, after, ARGV[3])
if restored then return {r[1], r[2], r[3], {}, '1'} end
return {r[1], r[2], r[3], read_page(after, tonumber(ARGV[2]), tonumber(ARGV[4]), tonumber(r[4] or 0)), '0'}
