-- return_run: a worker that stops gives up a run. Nobody claimed it: SUBMITTED, as before, with the next run's number, so
-- that the message at hand is outdated. Claimed: → CANCELED if a client asked for it; → FAILED if the turn may have one
-- run only, and a dead letter; else the lease is over and the run fenced off: the next attempt is lapse_run's, and this
-- one does not count.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] first part of the runner's id: a claimed run is given up only if its runner begins so; '' for a run
--       that nobody has claimed  [3] µs until the watcher publishes the next run  [4] dead letters key
--       [5…9] the FAILED event
-- returns {'queued', agent, next run, its options} | {'lapsed', agent, attempt, how many there may be} | {'over', state}
--       | {'unchanged'}: it is another's, or unknown
-- requires: context_queue, events, full_store, metrics, notifications, options, retirement, runs, states, status, tasks, time
local r = load_record(KEYS)
local run = tonumber(ARGV[1])
if not r then return {'unchanged'} end
if r.returned_run == ARGV[1] and r.run == run + 1 and r.phase == 'queued' and r.token == '' then -- a repeated call
  return {'queued', r.agent, micros(r.run), r.options or ''}
end
if r.run ~= run then return {'unchanged'} end
if r.phase == '' then return {'over', micros(r.state)} end
allow_on_full_store(KEYS[1])
if r.phase == 'queued' then
  if is_blocked(KEYS, r) then return {'unchanged'} end -- it is published when it has the turn
  redis.call('ZREM', r.dispatch, run_name(r))
  r.run, r.seq, r.token = run + 1, 0, ''
  redis.call('HDEL', KEYS[1], 'republish_count')
  redis.call('HSET', KEYS[1], 'returned_run', ARGV[1])
  redis.call('ZADD', r.dispatch, micros(math.max(now(), begins_at(r.options)) + tonumber(ARGV[3])), run_name(r))
  save_record(KEYS, r)
  return {'queued', r.agent, micros(r.run), r.options or ''}
end
if ARGV[2] == '' or string.sub(r.runner, 1, #ARGV[2]) ~= ARGV[2] then return {'unchanged'} end
local most = tonumber(r.max_attempts or '1')
if r.cancel_requested == '1' or most == 1 then
  if r.cancel_requested == '1' then write_status(KEYS, r, CANCELED, '1', r.canceled_event) else apply_events(KEYS, r, 5) end
  end_task(KEYS, r, r.state == FAILED and ARGV[4])
  count_metric(r, 'lost', r.state == FAILED and 'failed' or 'canceled')
  save_record(KEYS, r)
  notify(KEYS, r)
  return {'over', micros(r.state)}
end
if r.returned_run ~= ARGV[1] then
  most = most + 1
  redis.call('HINCRBY', KEYS[1], 'uncounted_attempts', 1)
  redis.call('HSET', KEYS[1], 'returned_run', ARGV[1], 'max_attempts', micros(most))
  redis.call('ZADD', r.leases, micros(now()), run_name(r))
  r.token = ''
  save_record(KEYS, r)
end
return {'lapsed', r.agent, micros(r.attempt), micros(most)}
