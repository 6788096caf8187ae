-- renew_runs: renew the leases of the runs of one worker process. The tasks do not change.
-- returns {names of the lost runs, names of the runs to cancel, names of the runs that a message interrupts, names of
--       the other runs with waiting messages}
-- requires: full_store, time

allow_on_full_store(leases)
local lost, canceled, interrupted, messages = {}, {}, {}, {}
local deadline = micros(now() + lease_us)
for _, leased in ipairs(claims) do
  local name, record, run = leased.name, leased.record, leased.run
  local r = redis.call('HMGET', record, 'run', 'token', 'phase', 'cancel_requested', 'interrupt_requested', 'has_messages')
  if r[1] == run and r[2] == leased.token and r[3] == 'running' then
    redis.call('ZADD', leases, deadline, name)
    if r[4] == '1' then canceled[#canceled + 1] = name
    elseif r[5] == run then interrupted[#interrupted + 1] = name
    elseif r[6] and redis.call('EXISTS', (string.gsub(record, 'task$', 'turns'))) == 1 then messages[#messages + 1] = name end
  else
    lost[#lost + 1] = name
  end
end
return {lost, canceled, interrupted, messages}
