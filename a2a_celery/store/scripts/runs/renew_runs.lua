-- renew_runs: all runs of one worker process; none of them changes its task.
-- KEYS  [1] leases  [2…] the record of each run's task
-- ARGV  [1] lease, µs  then three for each run: task id, run, token
-- returns {names of the runs that are lost, names of those that shall be cancelled}
-- requires: full_store, time
allow_on_full_store(KEYS[1])
local lost, cancel = {}, {}
local deadline = micros(now() + tonumber(ARGV[1]))
for i = 2, #KEYS do
  local at = 2 + (i - 2) * 3
  local name = ARGV[at] .. '.' .. ARGV[at + 1]
  local r = redis.call('HMGET', KEYS[i], 'run', 'token', 'phase', 'cancel_requested')
  if r[1] == ARGV[at + 1] and r[2] == ARGV[at + 2] and r[3] == 'running' then
    redis.call('ZADD', KEYS[1], deadline, name)
    if r[4] == '1' then cancel[#cancel + 1] = name end
  else
    lost[#lost + 1] = name
  end
end
return {lost, cancel}
