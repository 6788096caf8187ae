-- requires: keys, stored_bytes, time

-- A section can keep data until the client answers or the task ends: a field of the record and, if the data is due at some
-- time, an entry in the sorted set `<key prefix>:<field>`. The record's field `pause_data` has the names of these fields, each
-- followed by a space, and by '@' before the space if the sorted set has an entry.

-- Write a field that is deleted when the pause ends. due_us is the score of the task in the sorted set, or nil.
local function keep_until_resumed(keys, r, field, data, due_us)
  local earlier_data = r[field]
  if not earlier_data then
    redis.call('HSET', keys.record, 'pause_data', (r.pause_data or '') .. field .. (due_us and '@ ' or ' '))
  end
  redis.call('HSET', keys.record, field, data)
  add_size(r, #data - #(earlier_data or ''))
  if due_us then redis.call('ZADD', deployment_key(r, field), micros(due_us), task_tag(keys)) end
end

local function drop_pause_data(keys, r, field, is_due)
  local data = r[field]
  if not data then return end
  if is_due then redis.call('ZREM', deployment_key(r, field), task_tag(keys)) end
  add_size(r, -#data)
  redis.call('HDEL', keys.record, field)
end

-- Remove the task from the list of pauses, and delete the data that is kept until the pause ends.
local function end_pause(keys, r)
  if not r.pauses then return end
  redis.call('ZREM', r.pauses, task_tag(keys))
  local fields = r.pause_data
  if not fields then return end
  for field, mark in string.gmatch(fields, '([^ @]+)(@?) ') do drop_pause_data(keys, r, field, mark == '@') end
  redis.call('HDEL', keys.record, 'pause_data')
end
