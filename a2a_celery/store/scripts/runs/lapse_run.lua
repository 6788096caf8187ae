-- lapse_run: end the attempt of a worker whose lease has expired. any live state → CANCELED if a client requested the
-- cancellation; → WORKING, with the next run queued, if a message interrupts the run or the turn may have another
-- attempt; otherwise → FAILED, and the task can be resubmitted
-- returns {'failed'} | {'canceled'} | {'again', next run, its options}
--       | {'changed'}: the caller must repeat the call with arguments that are derived from the current version
--       | {'over'}: the lease has not expired, or the run has ended
-- requires: full_store, incoming, metrics, notifications, options, replacement, retirement, runs, states, status, tasks, time

local r = load_record(keys)
if not r or r.run ~= run or r.phase ~= 'running' then return {'over'} end
local lease = redis.call('ZSCORE', r.leases, run_name(r))
if lease and tonumber(lease) > now() then return {'over'} end
if r.version ~= version then return {'changed'} end
refuse_on_full_store(keys.record) -- the worker may be alive but unable to renew its lease in a full store
local reply
if is_interrupting(r) then
  local options = begin_turn_of_message(keys, r, r.state, '0', delay_us)
  reply = {'again', micros(r.run), options}
elseif r.cancel_requested ~= '1' and r.attempt < tonumber(r.max_attempts) then
  close_run(r)
  if replacement then replace_task(keys, r, replacement) end
  write_status(keys, r, WORKING, '0', working_event)
  merge_metadata(keys, metadata)
  r.run, r.attempt, r.seq, r.phase, r.token = r.run + 1, r.attempt + 1, 0, 'queued', ''
  redis.call('HDEL', keys.record, 'republish_count', 'lost_processes')
  local options = without_latest_start(r.options or '')
  if options ~= (r.options or '') then replace_options(keys, r, options) end
  enter_queue(r)
  redis.call('ZADD', r.dispatch, micros(now() + delay_us), run_name(r))
  reply = {'again', micros(r.run), options}
else
  local is_canceled = r.cancel_requested == '1'
  write_status(keys, r, is_canceled and CANCELED or FAILED, '1', is_canceled and r.canceled_event or failed_event)
  end_task(keys, r, not is_canceled)
  reply = {is_canceled and 'canceled' or 'failed'}
end
count_metric(r, 'lost', reply[1] == 'again' and r.returned_run == micros(run) and 'returned' or reply[1])
save_record(keys, r)
notify(keys, r)
return reply
