-- renew_runs: renew the leases of the runs of one worker process. The tasks do not change.
-- KEYS  leases, then the record of each run's task
-- ARGV  length of the lease in µs, then for each run: task id, run, token of its claim
-- returns {names of the lost runs, names of the runs to cancel, names of the runs that a message interrupts, names of
--       the other runs with waiting messages}
-- requires: full_store, time
local leases, first_record = KEYS[1], 2
local lease_us, first_run = tonumber(ARGV[1]), 2

allow_on_full_store(leases)
local lost, canceled, interrupted, messages = {}, {}, {}, {}
local deadline = micros(now() + lease_us)
for i = first_record, #KEYS do
  local argument = first_run + (i - first_record) * 3
  local task_id, run, token = ARGV[argument], ARGV[argument + 1], ARGV[argument + 2]
  local name = task_id .. '.' .. run
  local r = redis.call('HMGET', KEYS[i], 'run', 'token', 'phase', 'cancel_requested', 'interrupt_requested', 'has_messages')
  if r[1] == run and r[2] == token and r[3] == 'running' then
    redis.call('ZADD', leases, deadline, name)
    if r[4] == '1' then canceled[#canceled + 1] = name
    elseif r[5] == run then interrupted[#interrupted + 1] = name
    elseif r[6] and redis.call('EXISTS', (string.gsub(KEYS[i], 'task$', 'turns'))) == 1 then messages[#messages + 1] = name end
  else
    lost[#lost + 1] = name
  end
end
return {lost, canceled, interrupted, messages}
