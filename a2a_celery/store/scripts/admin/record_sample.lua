-- record_sample: record a sample of the metrics unless the series has a recent sample, and return the series. Of
-- several watchers, only one records a sample in each interval. Samples that were recorded before the store's clock was
-- set back are removed.
-- returns the samples, newest first, each as '<time in µs> <sample>'
-- requires: time

local samples = metrics .. ':samples:' .. series.name
local function newest()
  local entry = redis.call('LINDEX', samples, 0)
  return entry and tonumber(string.match(entry, '^%d+'))
end
if sample then
  while (newest() or 0) > now() do redis.call('LPOP', samples) end
  if now() - (newest() or 0) >= series.interval * TOLERANCE * 1000000 then
    redis.call('LTRIM', samples, 0, series.limit - 2) -- before LPUSH, which a full store refuses as the first write
    redis.call('LPUSH', samples, micros(now()) .. ' ' .. sample)
    redis.call('PEXPIRE', samples, math.ceil(series.interval * (series.limit - 1) * 1000))
  end
end
return redis.call('LRANGE', samples, 0, series.limit - 1)
