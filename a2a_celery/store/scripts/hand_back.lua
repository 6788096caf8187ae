-- hand_back: a worker that stops gives up a run. Nobody claimed it: SUBMITTED, as before, with the next run's number, so
-- that the message at hand is outdated. Claimed: → CANCELED if a client asked for it; → FAILED if the turn may have one
-- run only, and a dead letter; else the lease is over and the run fenced off: the next attempt is lapse_run's, and this
-- one does not count.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] first part of the runner's id: a claimed run is given up only if its runner begins so; '' for a run
--       that nobody has claimed  [3] µs until the watcher publishes the next run  [4] dead letters key
--       [5…9] the FAILED event
-- gives {'queued', agent, next run, its options} | {'lapsed', agent, attempt, how many there may be} | {'over', state}
--       | {'kept'}: it is another's, or unknown
local r = load(KEYS)
local run = tonumber(ARGV[1])
if not r then return {'kept'} end
if r.handed_back == ARGV[1] and r.run == run + 1 and r.phase == 'queued' and r.token == '' then -- a repeated call
  return {'queued', r.agent, micros(r.run), r.options or ''}
end
if r.run ~= run then return {'kept'} end
if r.phase == '' then return {'over', micros(r.state)} end
if r.phase == 'queued' then
  if stands_behind(KEYS, r) then return {'kept'} end -- it is published when it has the turn
  redis.call('ZREM', r.dispatch, run_name(r))
  r.run, r.seq, r.token = run + 1, 0, ''
  redis.call('HDEL', KEYS[1], 'dispatched_again')
  redis.call('HSET', KEYS[1], 'handed_back', ARGV[1])
  redis.call('ZADD', r.dispatch, micros(math.max(now(), begins_at(r.options)) + tonumber(ARGV[3])), run_name(r))
  save(KEYS, r)
  return {'queued', r.agent, micros(r.run), r.options or ''}
end
if ARGV[2] == '' or string.sub(r.runner, 1, #ARGV[2]) ~= ARGV[2] then return {'kept'} end
local most = tonumber(r.max_attempts or '1')
if r.asked_to_cancel == '1' or most == 1 then
  if r.asked_to_cancel == '1' then write_status(KEYS, r, CANCELED, '0', r.canceled) else apply_events(KEYS, r, 5) end
  retire(KEYS, r, r.state == FAILED and ARGV[4])
  tally(r, 'lost', r.state == FAILED and 'failed' or 'canceled')
  save(KEYS, r)
  wake(KEYS, r)
  return {'over', micros(r.state)}
end
if r.handed_back ~= ARGV[1] then
  most = most + 1
  redis.call('HINCRBY', KEYS[1], 'spared', 1)
  redis.call('HSET', KEYS[1], 'handed_back', ARGV[1], 'max_attempts', micros(most))
  redis.call('ZADD', r.leases, micros(now()), run_name(r))
  r.token = ''
  save(KEYS, r)
end
return {'lapsed', r.agent, micros(r.attempt), micros(most)}
