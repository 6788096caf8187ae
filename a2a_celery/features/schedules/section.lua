-- schedules: start at most one task at each tick of a schedule. A section has the fields of TickSection in section.py.
-- requires: indexes, keys, states, time
--
-- The newest ticks of a schedule are a sorted set, scored by the time of the tick in µs. A member is '<µs> <tag of the
-- task>', or '<µs> ' for a skipped tick. The set expires with the ended tasks, at the earliest a day after the newest tick.

local MAX_TICKS = 1000
local ticks = schedules.index_prefix .. 'ticks'

local function record_tick(tag)
  redis.call('ZADD', ticks, schedules.at, schedules.at .. ' ' .. tag)
  redis.call('ZREMRANGEBYRANK', ticks, 0, -MAX_TICKS - 1)
  redis.call('EXPIRE', ticks, schedules.ticks_ttl)
end

-- Return the member of a tick within the window before or after the time of this tick. If this tick is before the oldest
-- tick of a full set, return the oldest tick. Return nil if the tick is new.
local function find_tick()
  local at = tonumber(schedules.at)
  local first, last = micros(at - schedules.window), micros(at + schedules.window)
  local known = redis.call('ZRANGEBYSCORE', ticks, first, last, 'LIMIT', 0, 1)[1]
  if known or redis.call('ZCARD', ticks) < MAX_TICKS then return known end
  local oldest = redis.call('ZRANGE', ticks, 0, 0, 'WITHSCORES')
  return at < tonumber(oldest[2]) and oldest[1] or nil
end

-- Return {'repeated', tag of the task} for a tick that was handled before, with the tag '' if the tick was skipped. Return
-- {'skipped'} if a task of the schedule is SUBMITTED or WORKING. Return nil if the tick starts a task.
local function check(schedules)
  local known = find_tick()
  if known then return {'repeated', string.match(known, ' (.*)$')} end
  if not schedules.skips then return nil end
  if redis.call('ZCARD', schedules.index_prefix .. SUBMITTED) + redis.call('ZCARD', schedules.index_prefix .. WORKING) == 0 then return nil end
  record_tick('')
  return {'skipped'}
end

local function accepted(schedules, keys)
  record_tick(task_tag(keys))
  join_index(keys, schedules.index_prefix)
end
