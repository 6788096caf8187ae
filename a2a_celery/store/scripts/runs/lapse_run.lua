-- lapse_run: takes a run from a worker that is not heard of. WORKING (or any live state) → CANCELED, if a client asked
-- for it; → WORKING with the next run, if the turn may have another; else → FAILED, and a dead letter
-- KEYS  a task's ten
-- ARGV  [1] run  [2] the version that the arguments below were made from  [3] FAILED event
--       [4] WORKING event of the next attempt  [5] its metadata, packed  [6] µs until the next run is published
--       [7] dead letters key  [8…] if artifacts that the lost run left open shall go: what replace_task takes
-- returns {'failed'} | {'canceled'} | {'again', next run, its options} | {'changed'}: look again
--       | {'over'}: not lapsed, or not any more
-- requires: full_store, metrics, notifications, replacement, retirement, runs, states, status, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase ~= 'running' then return {'over'} end
local lease = redis.call('ZSCORE', r.leases, run_name(r))
if lease and tonumber(lease) > now() then return {'over'} end
if r.version ~= tonumber(ARGV[2]) then return {'changed'} end
refuse_on_full_store(KEYS[1]) -- the worker may be alive: a store that is full keeps the lease
local answer
if r.cancel_requested ~= '1' and r.attempt < tonumber(r.max_attempts or '1') then
  close_run(r)
  if #ARGV >= 8 then replace_task(KEYS, r, 8) end
  write_status(KEYS, r, WORKING, '0', ARGV[4])
  merge_metadata(KEYS, ARGV[5])
  r.run, r.attempt, r.seq, r.phase, r.token = r.run + 1, r.attempt + 1, 0, 'queued', ''
  redis.call('HDEL', KEYS[1], 'republish_count', 'lost_processes')
  enter_queue(r)
  redis.call('ZADD', r.dispatch, micros(now() + tonumber(ARGV[6])), run_name(r))
  answer = {'again', micros(r.run), r.options or ''}
else
  local canceled = r.cancel_requested == '1'
  write_status(KEYS, r, canceled and CANCELED or FAILED, '1', canceled and r.canceled_event or ARGV[3])
  end_task(KEYS, r, not canceled and ARGV[7])
  answer = {canceled and 'canceled' or 'failed'}
end
count_metric(r, 'lost', r.returned_run == ARGV[1] and 'returned' or answer[1])
save_record(KEYS, r)
notify(KEYS, r)
return answer
