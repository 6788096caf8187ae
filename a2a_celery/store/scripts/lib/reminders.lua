-- requires: keys, stored_bytes, time

-- A question may have reminders. The field `reminders` of the record is a sequence of strings, each preceded by its
-- length in four bytes (big-endian):
-- 1. the µs between the question and each reminder, separated by spaces
-- 2. for each reminder, the bytes that are appended to the question's status event, and its packed metadata
-- 3. the fields of ConfigArguments for the webhook that receives the last reminder and all later events, if there is one
-- Two concatenated protobuf messages are one merged message.

local function reminders_key(r) return (string.gsub(r.leases, 'leases$', 'reminders')) end

local function unpack_reminders(packed)
  local texts, position = {}, 1
  while position <= #packed do
    texts[#texts + 1], position = struct.unpack('>I4c0', packed, position)
  end
  local times = {}
  for us in string.gmatch(texts[1], '%d+') do times[#times + 1] = tonumber(us) end
  return texts, times
end

-- Schedule the first of the `packed` reminders of a question that is asked now. '' for no reminders.
local function schedule_reminders(keys, r, packed)
  if packed == '' then return end
  redis.call('HSET', keys.record, 'reminders', packed, 'posted_reminders', '0')
  add_size(r, #packed)
  local _, times = unpack_reminders(packed)
  redis.call('ZADD', reminders_key(r), micros(now() + times[1]), task_tag(keys))
end

local function cancel_reminders(keys, r)
  local packed = r.reminders
  if not packed then return end
  redis.call('ZREM', reminders_key(r), task_tag(keys))
  add_size(r, -#packed)
  redis.call('HDEL', keys.record, 'reminders', 'posted_reminders')
end
