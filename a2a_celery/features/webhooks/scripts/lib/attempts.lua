-- requires: time

-- Maximum number of stored attempts of a config.
local MAX_ATTEMPTS = 20

-- Record a delivery attempt in place of the oldest recorded attempt. `attempt` is JSON, nil to record no attempt. The
-- next attempt follows in after_us, nil for none. The attempt was made at the time `at`, nil for now.
local function record_attempt(keys, config, attempt, after_us, at)
  if not attempt then return end
  at = at or now()
  local number = redis.call('HINCRBY', keys.cursors, config .. ':attempts', 1)
  redis.call('HSET', keys.cursors, config .. ':attempt:' .. number % MAX_ATTEMPTS,
    micros(at) .. ' ' .. micros(after_us and at + after_us or 0) .. ' ' .. attempt)
end

-- Return the recorded attempts, newest first.
local function read_attempts(keys, config)
  local newest, found = tonumber(redis.call('HGET', keys.cursors, config .. ':attempts') or '0'), {}
  for number = newest, math.max(1, newest - MAX_ATTEMPTS + 1), -1 do
    found[#found + 1] = redis.call('HGET', keys.cursors, config .. ':attempt:' .. number % MAX_ATTEMPTS) or nil
  end
  return found
end

local function remove_attempts(keys, config)
  local fields = {config .. ':attempts', config .. ':requested'}
  for number = 0, MAX_ATTEMPTS - 1 do fields[#fields + 1] = config .. ':attempt:' .. number end
  redis.call('HDEL', keys.cursors, unpack(fields))
end
