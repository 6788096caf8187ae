-- publish_on_accept: push the Celery message of a run to its list if this Redis process is the broker. A section has the
-- fields of PushedMessage in section.py.
-- requires: runs, time

-- Push the message of the run that `r` describes, and return true if it was pushed. A refused command does not prevent the
-- other writes of the script.
local function publish(publish_on_accept, keys, r)
  local message = publish_on_accept
  if message.run ~= run_name(r) then return end
  local information = redis.pcall('INFO', 'server')
  if type(information) ~= 'string' or string.match(information, 'run_id:(%x+)') ~= message.server then return end
  local is_elsewhere = message.database ~= message.store_database
  if is_elsewhere and redis.pcall('SELECT', message.database).err then return end
  local is_pushed = type(redis.pcall('LPUSH', message.queue, message.body)) == 'number'
  if is_pushed and message.event_channel ~= '' then redis.pcall('PUBLISH', message.event_channel, message.event) end
  if is_elsewhere then redis.call('SELECT', message.store_database) end
  if not is_pushed then return end
  redis.call('HSET', keys.record, 'published_at', micros(r.run) .. ' ' .. micros(now()))
  redis.call('ZADD', r.dispatch, 'XX', micros(now() + message.delay_us), message.run)
  return true
end
