-- requires: time

-- Remove expired members of a list of cursors, and let the list expire with its last member. Scores are the µs at
-- which the keys of the tasks expire, inf for live tasks.
local function prune_expired(list)
  redis.call('ZREMRANGEBYSCORE', list, '-inf', micros(now()))
  local last = redis.call('ZREVRANGE', list, 0, 0, 'WITHSCORES')
  if last[2] == 'inf' then
    redis.call('PERSIST', list)
  elseif last[2] then
    redis.call('PEXPIREAT', list, micros(math.ceil(tonumber(last[2]) / 1000)))
  end
end

-- Return the µs at which the keys of a task expire, inf for a live task.
local function expires_at(keys)
  local left = redis.call('PTTL', keys[1])
  return left < 0 and math.huge or now() + left * 1000
end
