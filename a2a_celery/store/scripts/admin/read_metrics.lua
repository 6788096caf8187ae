-- read_metrics: return the metrics of the deployment, the number of open runs, and the age of each agent's oldest
-- queued run.
-- returns {current time in µs, {field, value, …}, queued, running, delegated, paused, tasks that can be resubmitted,
--       {agent, µs for which its oldest run has waited, …}, blocked, tasks due for the archive, µs for which the oldest task has been
--       due, refused tasks, suspended}
-- requires: keys, time

local oldest, ages = {}, {}
for _, name in ipairs(redis.call('ZRANGE', dispatch, 0, SAMPLED_RUNS - 1)) do
  local record = prefix .. ':{' .. quoted(string.match(name, '^(.*)%.%d+$')) .. '}:task'
  local r = redis.call('HMGET', record, 'agent', 'at', 'begins_at', 'unblocked_at', 'resumed_at')
  if r[1] then
    local since = math.max(tonumber(r[2]), tonumber(r[3] or 0), tonumber(r[4] or 0), tonumber(r[5] or 0))
    oldest[r[1]] = math.min(oldest[r[1]] or since, since)
  end
end
for agent, since in pairs(oldest) do
  ages[#ages + 1] = agent
  ages[#ages + 1] = micros(math.max(0, now() - since))
end
return {
  micros(now()), redis.call('HGETALL', metrics), redis.call('ZCARD', dispatch), redis.call('ZCARD', leases),
  redis.call('ZCARD', canvases), redis.call('ZCARD', pauses), redis.call('ZCOUNT', resubmittable, micros(now()), '+inf'), ages,
  redis.call('ZCARD', blocked), redis.call('ZCOUNT', archive, '-inf', micros(now())),
  micros(math.max(0, now() - tonumber(redis.call('ZRANGE', archive, 0, 0, 'WITHSCORES')[2] or now()))),
  redis.call('ZCARD', archive_refused), redis.call('ZCARD', suspended),
}
