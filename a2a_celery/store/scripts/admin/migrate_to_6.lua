-- migrate_to_6: remove the message from the stored requests of tasks, because the log also contains it. Handles one page of
-- the keyspace. Repeat the call until the cursor is 0.
-- returns {next cursor, number of changed tasks}
-- requires: keys, stored_bytes, tasks

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0
local MESSAGE = 0x12 -- first byte of the field `message` of a request

-- Return the number at `position` in an encoded protobuf message, and the position after the number.
local function read_number(bytes, position)
  local number, factor, byte = 0, 1, 128
  while byte >= 128 do
    byte = string.byte(bytes, position) or 0
    number, factor, position = number + byte % 128 * factor, factor * 128, position + 1
  end
  return number, position
end

-- Return an encoded request without its message and without references to blobs.
local function without_message(request)
  local kept, position = {}, 1
  if string.byte(request) == 0 then position = 6 + struct.unpack('>I4', request, 2) end
  while position <= #request do
    local length, start = read_number(request, position + 1)
    if string.byte(request, position) ~= MESSAGE then kept[#kept + 1] = string.sub(request, position, start + length - 1) end
    position = start + length
  end
  return table.concat(kept)
end

-- Remove the messages from the requests of a task, and from those of its waiting messages, see continue_task. Return true
-- if a request changed.
local function convert_requests(keys, r)
  local converted = r.request and without_message(r.request)
  local bytes, has_changed = 0, converted ~= r.request
  if has_changed then
    bytes = r.quota_account and #r.request - #converted or 0
    if not is_dry_run then redis.call('HSET', keys.record, 'request', converted) end
  end
  for i, waiting in ipairs(redis.call('LRANGE', keys.turns, 0, -1)) do
    local _, _, request, rest = struct.unpack('>I4c0I4c0I4c0', waiting)
    converted = without_message(request)
    if converted ~= request then
      has_changed, bytes = true, bytes + #request - #converted
      local first = string.sub(waiting, 1, rest - #request - 5)
      local packed = first .. struct.pack('>I4c0', #converted, converted) .. string.sub(waiting, rest)
      if not is_dry_run then redis.call('LSET', keys.turns, i - 1, packed) end
    end
  end
  if has_changed and not is_dry_run then free_bytes(keys, r, bytes) end
  return has_changed
end

for _, record in ipairs(page[2]) do
  local keys = string.sub(record, 1, #prefix + 2) == prefix .. ':{' and keys_of(prefix, string.match(record, '{(.-)}'))
  local r = keys and load_record(keys)
  if r and convert_requests(keys, r) then changed = changed + 1 end
end
return {page[1], changed}
