-- requires: time

-- Maximum bytes of the entries in a notification. Up to this size, inline entries are faster than a read of the log.
local MAX_INLINE_BYTES = 8192

-- Maximum number of entries of a log that a notification contains completely. Most turns have fewer entries.
local MAX_INLINE_ENTRIES = 16

-- Buffer a log entry for the notification, unless the entry has parts in the object store.
local function buffer_inline_entry(r, entry)
  local is_elsewhere = string.byte(entry, string.find(entry, ' ', 1, true) + 1) == 0
  r.inline_bytes = r.inline_bytes + (is_elsewhere and MAX_INLINE_BYTES + 1 or #entry)
  if r.inline_bytes <= MAX_INLINE_BYTES then r.inline_entries[#r.inline_entries + 1] = struct.pack('>I4', #entry) .. entry end
end

-- Notify the followers of the task; see store/log/pubsub.py. A notification on the reply channel also contains the
-- entries that this script has appended or, if the channel receives final states only, the complete log if it is short.
local function notify(keys, r)
  local notification = micros(r.version) .. (r.is_final and ' final' or '')
  redis.call('PUBLISH', keys.notifications, notification)
  if not r.reply_channel or (r.final_only == '1' and not r.is_final) then return end
  if r.final_only == '1' and r.version <= MAX_INLINE_ENTRIES then
    local i = 1
    while i < r.version and r.inline_bytes <= MAX_INLINE_BYTES do -- followers read a larger log themselves
      buffer_inline_entry(r, r.entries and r.entries[i + 1] or redis.call('LINDEX', keys.log, i))
      i = i + 1
    end
  end
  if #r.inline_entries > 0 and r.inline_bytes <= MAX_INLINE_BYTES then
    local before_us = r.final_only == '1' and 0 or r.before_us
    notification = notification .. '\n' .. micros(r.state) .. ' ' .. micros(before_us) .. ' ' .. table.concat(r.inline_entries)
  end
  redis.call('PUBLISH', r.reply_channel, keys.notifications .. ' ' .. notification)
end
