-- requires: states, time

-- The ticks of a schedule are a sorted set, scored by the time of the tick in µs. A member is '<µs> <tag of the task>',
-- or '<µs> ' for a skipped tick.

local MAX_TICKS = 1000
local MIN_TICKS_EXPIRY = 86400 -- seconds for which the broker may redeliver the message of a tick

local function record_tick(ticks, at, tag, retention)
  redis.call('ZADD', ticks, at, at .. ' ' .. tag)
  redis.call('ZREMRANGEBYRANK', ticks, 0, -MAX_TICKS - 1)
  redis.call('EXPIRE', ticks, math.max(tonumber(retention), MIN_TICKS_EXPIRY))
end

-- Return the member of a tick at most `window` µs before or after `at`. If `at` is before the oldest tick of a full
-- set, return the oldest tick. Return nil if the tick is new.
local function find_tick(ticks, at, window)
  local first, last = micros(at - window), micros(at + window)
  local known = redis.call('ZRANGEBYSCORE', ticks, first, last, 'LIMIT', 0, 1)[1]
  if known or redis.call('ZCARD', ticks) < MAX_TICKS then return known end
  local oldest = redis.call('ZRANGE', ticks, 0, 0, 'WITHSCORES')
  return at < tonumber(oldest[2]) and oldest[1] or nil
end

-- Return the reply of the script for a tick that creates no task, or nil. `tick` is a table with the fields of
-- TickArguments in store/tasks/schedules.py, or nil.
local function refused_tick(tick, retention)
  if not tick then return nil end
  local known = find_tick(tick.ticks, tonumber(tick.at), tick.window)
  if known then return {'repeated', string.match(known, ' (.*)$')} end
  if not tick.skips then return nil end
  if redis.call('ZCARD', tick.schedule_index .. SUBMITTED) + redis.call('ZCARD', tick.schedule_index .. WORKING) == 0 then return nil end
  record_tick(tick.ticks, tick.at, '', retention)
  return {'skipped'}
end
