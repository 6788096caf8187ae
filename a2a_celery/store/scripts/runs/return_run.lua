-- return_run: return the run of a worker that shuts down. An unclaimed run stays SUBMITTED and is queued with the next
-- number, so that the worker's message is outdated. A claimed run → CANCELED if a client requested cancellation; →
-- FAILED if the turn may have only one run, and the task can be resubmitted. Otherwise, the lease of the run ends, its
-- writes are refused, and its attempt does not count toward the limit; see lapse_run.
-- returns {'queued', agent, next run, its options} | {'lapsed', agent, attempt, maximum attempts} | {'over', state}
--       | {'unchanged'}: the run belongs to another process, or does not exist
-- requires: context_queue, events, full_store, incoming, metrics, notifications, options, publication, retirement, runs, states, status, tasks, time

local r = load_record(keys)
if not r then return {'unchanged'} end
if r.returned_run == micros(run) and r.run == run + 1 and r.phase == 'queued' and r.token == '' then -- a repeated call
  return {'queued', r.agent, micros(r.run), r.options or ''}
end
if r.run ~= run then return {'unchanged'} end
if r.phase == '' then return {'over', micros(r.state)} end
allow_on_full_store(keys.record)
if r.phase == 'queued' then
  if is_blocked(keys, r) then return {'unchanged'} end -- the run is published when it is unblocked
  redis.call('ZREM', r.dispatch, run_name(r))
  r.run, r.seq, r.token = r.run + 1, 0, ''
  redis.call('HDEL', keys.record, 'republish_count')
  redis.call('HSET', keys.record, 'returned_run', run)
  redis.call('ZADD', r.dispatch, micros(math.max(now(), begins_at(r.options)) + FIRST_PUBLISH_GRACE_US), run_name(r))
  save_record(keys, r)
  return {'queued', r.agent, micros(r.run), r.options or ''}
end
if not runner or string.sub(r.runner, 1, #runner) ~= runner then return {'unchanged'} end
local max_attempts, is_canceled = tonumber(r.max_attempts), r.cancel_requested == '1'
if is_canceled or max_attempts == 1 and not is_interrupting(r) then
  if is_canceled then write_status(keys, r, CANCELED, '1', r.canceled_event) else apply_events(keys, r, {loss}) end
  end_task(keys, r, r.state == FAILED)
  count_metric(r, 'lost', r.state == FAILED and 'failed' or 'canceled')
  save_record(keys, r)
  notify(keys, r)
  return {'over', micros(r.state)}
end
if r.returned_run ~= micros(run) then
  max_attempts = max_attempts + 1
  redis.call('HINCRBY', keys.record, 'uncounted_attempts', 1)
  redis.call('HSET', keys.record, 'returned_run', run, 'max_attempts', micros(max_attempts))
  redis.call('ZADD', r.leases, micros(now()), run_name(r))
  r.token = ''
  save_record(keys, r)
end
return {'lapsed', r.agent, micros(r.attempt), micros(max_attempts)}
