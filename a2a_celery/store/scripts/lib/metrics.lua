-- requires: buckets, keys, time

-- Increment a metric of the task's agent; see store/admin/metrics.py.
local function count_metric(r, what, label, times)
  local agent = string.match(r.scope, '^[^/]+')
  redis.call('HINCRBY', deployment_key(r, 'metrics'), what .. ' ' .. agent .. ' ' .. label, times or 1)
end

-- Count the duration since `since` (µs, nil for unknown) in the first bucket of BOUNDS that includes the duration.
local function observe_duration(r, what, since)
  if not since then return end
  local us, bucket = math.max(0, now() - tonumber(since)), #BOUNDS + 1
  for i = #BOUNDS, 1, -1 do
    if us <= BOUNDS[i] then bucket = i end
  end
  count_metric(r, what, bucket)
  count_metric(r, what, 'sum', micros(us))
end
