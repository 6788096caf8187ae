-- requires: states, time

-- Ticks of a schedule, scored by their µs: '<µs> <tag of the task>', or '<µs> ' for a tick that was skipped.

local MAX_TICKS = 1000
local MIN_TICKS_EXPIRY = 86400 -- seconds for which a message of the broker may be delivered again

local function record_tick(ticks, at, tag, retention)
  redis.call('ZADD', ticks, at, at .. ' ' .. tag)
  redis.call('ZREMRANGEBYRANK', ticks, 0, -MAX_TICKS - 1)
  redis.call('EXPIRE', ticks, math.max(tonumber(retention), MIN_TICKS_EXPIRY))
end

-- Return the member of a tick at most `window` µs before or after `at`, or the oldest tick if all ticks that could be
-- equal were removed. Return nil if the tick is new.
local function find_tick(ticks, at, window)
  local first, last = micros(at - window), micros(at + window)
  local known = redis.call('ZRANGEBYSCORE', ticks, first, last, 'LIMIT', 0, 1)[1]
  if known or redis.call('ZCARD', ticks) < MAX_TICKS then return known end
  local oldest = redis.call('ZRANGE', ticks, 0, 0, 'WITHSCORES')
  return at < tonumber(oldest[2]) and oldest[1] or nil
end

-- Return the reply to a tick that creates no task, or nil. Arguments from ARGV[first] on: prefix of the indexes of the
-- schedule ('' for a task without a schedule), ticks of the schedule, µs of the tick, µs within which two ticks are
-- equal, '1' to skip the tick while a task of the schedule is SUBMITTED or WORKING.
local function refused_tick(first, retention)
  local index, ticks, at, window, skips = unpack(ARGV, first, first + 4)
  if index == '' then return nil end
  local known = find_tick(ticks, tonumber(at), tonumber(window))
  if known then return {'repeated', string.match(known, ' (.*)$')} end
  if skips ~= '1' then return nil end
  if redis.call('ZCARD', index .. SUBMITTED) + redis.call('ZCARD', index .. WORKING) == 0 then return nil end
  record_tick(ticks, at, '', retention)
  return {'skipped'}
end
