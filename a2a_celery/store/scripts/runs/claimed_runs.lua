-- claimed_runs: runs under way and the time of their publish; nothing changes.
-- KEYS  [1] leases
-- ARGV  [1] key prefix  [2] at most this many leases, the newest first  [3] bytes of options, at most
-- returns {for each run: agent, options, µs of its publish}. A run that was published more than once is left out: its claim does
--       not tell which message the worker received.
-- requires: keys, time
local claimed, at = {}, now()
for _, name in ipairs(redis.call('ZREVRANGE', KEYS[1], 0, tonumber(ARGV[2]) - 1)) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local record = ARGV[1] .. ':{' .. quoted(task_id) .. '}:task'
  local r = redis.call('HMGET', record, 'run', 'phase', 'agent', 'options', 'published_at', 'republish_count')
  local published_run, published_us = string.match(r[5] or '', '^(%d+) (%d+)$')
  local options = r[4] or ''
  if r[1] == run and r[2] == 'running' and published_run == run and (r[6] or '0') == '0' and #options <= tonumber(ARGV[3])
      and tonumber(published_us) <= at then -- else the store's clock was set back since
    for _, value in ipairs({r[3], options, published_us}) do claimed[#claimed + 1] = value end
  end
end
return claimed
