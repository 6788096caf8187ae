-- requires: runs, time

-- Return '1' if a script has recorded that the broker has the message of the newest run, or if a worker has claimed the
-- run. Otherwise, return '0'.
local function is_published(keys, run)
  local published_at, phase = unpack(redis.call('HMGET', keys[1], 'published_at', 'phase'))
  local published_run = string.match(published_at or '', '^(%d+) ')
  return (phase ~= 'queued' or published_run == micros(run)) and '1' or '0'
end

-- Push the Celery message of the newest, queued run to its list if this Redis process is the broker. Arguments from
-- ARGV[first] on: run_id of the broker's Redis process ('' for no message), "<task id>.<run>" of the message, database
-- of the broker, database of the store, list, message, channel of an event ('' for none), event, µs until a watcher
-- publishes the run again. `r` must have `dispatch` and the fields that run_name reads.
-- Call this function after all other writes, so that a refused command does not prevent the other writes. Return '1' if
-- the message was pushed, or '0'.
local function push_message(keys, r, first)
  local server, name, database, own_database, list, message, channel, event, delay_us = unpack(ARGV, first, first + 8)
  if server == '' or name ~= run_name(r) then return '0' end
  local information = redis.pcall('INFO', 'server')
  if type(information) ~= 'string' or string.match(information, 'run_id:(%x+)') ~= server then return '0' end
  local is_elsewhere = database ~= own_database
  if is_elsewhere and redis.pcall('SELECT', database).err then return '0' end
  local is_pushed = type(redis.pcall('LPUSH', list, message)) == 'number'
  if is_pushed and channel ~= '' then redis.pcall('PUBLISH', channel, event) end
  if is_elsewhere then redis.call('SELECT', own_database) end
  if not is_pushed then return '0' end
  redis.call('HSET', keys[1], 'published_at', micros(r.run) .. ' ' .. micros(now()))
  redis.call('ZADD', r.dispatch, 'XX', micros(now() + tonumber(delay_us)), name)
  return '1'
end
