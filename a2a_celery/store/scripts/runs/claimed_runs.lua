-- claimed_runs: return the claimed runs of the newest leases with the time of their publication.
-- returns {for each run: agent, options, time of its publication in µs}, except runs with larger options, and runs that
--       were published more than once, because their claims do not show which message the worker received
-- requires: keys, time

local reply, at = {}, now()
for _, name in ipairs(redis.call('ZREVRANGE', leases, 0, limit - 1)) do
  local record, _, run = record_of_run(prefix, name)
  local r = redis.call('HMGET', record, 'run', 'phase', 'agent', 'options', 'published_at', 'republish_count')
  local published_run, published_us = string.match(r[5] or '', '^(%d+) (%d+)$')
  local options = r[4] or ''
  if r[1] == run and r[2] == 'running' and published_run == run and (r[6] or '0') == '0' and #options <= MAX_CLAIMED_OPTIONS
      and tonumber(published_us) <= at then -- otherwise, the store's clock was set back since the publication
    for _, value in ipairs({r[3], options, published_us}) do reply[#reply + 1] = value end
  end
end
return reply
