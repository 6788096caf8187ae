-- read_metrics: what all tasks of a deployment came to, how many runs are open, and how long those that wait have.
-- KEYS  [1] metrics  [2] dispatch  [3] leases  [4] canvases  [5] pauses  [6] dead letters  [7] runs that stand behind
--       [8] archive  [9] archive refused
-- ARGV  [1] key prefix  [2] so many of the runs that wait are looked at
-- returns {µs now, {field, value, …}, queued, running, handed, paused, dead letters, {agent, µs its oldest run has waited, …},
--       behind, tasks due for the archive, µs for which the oldest is, those that it refused}
-- requires: keys, time
local oldest, ages = {}, {}
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], 0, tonumber(ARGV[2]) - 1)) do
  local record = ARGV[1] .. ':{' .. quoted(string.match(name, '^(.*)%.%d+$')) .. '}:task'
  local r = redis.call('HMGET', record, 'agent', 'at', 'begins_at', 'unblocked_at')
  if r[1] then
    local since = math.max(tonumber(r[2]), tonumber(r[3] or 0), tonumber(r[4] or 0))
    oldest[r[1]] = math.min(oldest[r[1]] or since, since)
  end
end
for agent, since in pairs(oldest) do
  ages[#ages + 1] = agent
  ages[#ages + 1] = micros(math.max(0, now() - since))
end
return {
  micros(now()), redis.call('HGETALL', KEYS[1]), redis.call('ZCARD', KEYS[2]), redis.call('ZCARD', KEYS[3]),
  redis.call('ZCARD', KEYS[4]), redis.call('ZCARD', KEYS[5]), redis.call('ZCOUNT', KEYS[6], micros(now()), '+inf'), ages,
  redis.call('ZCARD', KEYS[7]), redis.call('ZCOUNT', KEYS[8], '-inf', micros(now())),
  micros(math.max(0, now() - tonumber(redis.call('ZRANGE', KEYS[8], 0, 0, 'WITHSCORES')[2] or now()))),
  redis.call('ZCARD', KEYS[9]),
}
