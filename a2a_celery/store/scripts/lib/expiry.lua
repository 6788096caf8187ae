-- requires: time

-- Remove the expired members of a list, and let the list expire with its last member. The score of a member is the time
-- in µs at which it expires, or inf for a member of a live task.
local function prune_expired(list)
  redis.call('ZREMRANGEBYSCORE', list, '-inf', micros(now()))
  local last = redis.call('ZREVRANGE', list, 0, 0, 'WITHSCORES')
  if last[2] == 'inf' then
    redis.call('PERSIST', list)
  elseif last[2] then
    redis.call('PEXPIREAT', list, micros(math.ceil(tonumber(last[2]) / 1000)))
  end
end

-- Return the time in µs at which the keys of a task expire, or inf for a live task.
local function expires_at(keys)
  local left = redis.call('PTTL', keys.record)
  return left < 0 and math.huge or now() + left * 1000
end
