-- requires: runs, time

-- Return '1' if a script has recorded that the broker has the message of the newest run, or if a worker has claimed the
-- run. Otherwise, return '0'.
local function is_published(keys, run)
  local published_at, phase = unpack(redis.call('HMGET', keys.record, 'published_at', 'phase'))
  local published_run = string.match(published_at or '', '^(%d+) ')
  return (phase ~= 'queued' or published_run == micros(run)) and '1' or '0'
end

-- Push the Celery message of the newest, queued run to its list if this Redis process is the broker. `message` is a table
-- with the fields of BrokerMessage in store/tasks/commands.py, or nil. `r` must have `dispatch` and the fields that run_name reads.
-- Call this function after all other writes, so that a refused command does not prevent the other writes. Return '1' if
-- the message was pushed, or '0'.
local function push_message(keys, r, message)
  if not message or message.run ~= run_name(r) then return '0' end
  local information = redis.pcall('INFO', 'server')
  if type(information) ~= 'string' or string.match(information, 'run_id:(%x+)') ~= message.server then return '0' end
  local is_elsewhere = message.database ~= message.store_database
  if is_elsewhere and redis.pcall('SELECT', message.database).err then return '0' end
  local is_pushed = type(redis.pcall('LPUSH', message.queue, message.body)) == 'number'
  if is_pushed and message.event_channel ~= '' then redis.pcall('PUBLISH', message.event_channel, message.event) end
  if is_elsewhere then redis.call('SELECT', message.store_database) end
  if not is_pushed then return '0' end
  redis.call('HSET', keys.record, 'published_at', micros(r.run) .. ' ' .. micros(now()))
  redis.call('ZADD', r.dispatch, 'XX', micros(now() + message.delay_us), message.run)
  return '1'
end
