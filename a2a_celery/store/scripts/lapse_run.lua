-- lapse_run: takes a run from a worker that is not heard of. WORKING (or any live state) → CANCELED, if a client asked
-- for it; → WORKING with the next run, if the turn may have another; else → FAILED, and a dead letter
-- KEYS  a task's ten
-- ARGV  [1] run  [2] the version that the arguments below were made from  [3] FAILED event  [4] CANCELED event
--       [5] WORKING event of the next attempt  [6] its metadata, packed  [7] µs until the next run is published
--       [8] dead letters key  [9…] if artifacts that the lost run left open shall go: what replace_task takes
-- gives {'failed'} | {'canceled'} | {'again', next run, its options} | {'changed'}: look again
--       | {'over'}: not lapsed, or not any more
local r = load(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase ~= 'running' then return {'over'} end
local lease = redis.call('ZSCORE', r.leases, run_name(r))
if lease and tonumber(lease) > now() then return {'over'} end
if r.version ~= tonumber(ARGV[2]) then return {'changed'} end
local answer
if r.asked_to_cancel ~= '1' and r.attempt < tonumber(r.max_attempts or '1') then
  close_run(r)
  if #ARGV >= 9 then replace_task(KEYS, r, 9) end
  write_status(KEYS, r, WORKING, '0', ARGV[5])
  merge_metadata(KEYS, ARGV[6])
  r.run, r.attempt, r.seq, r.phase, r.token = r.run + 1, r.attempt + 1, 0, 'queued', ''
  redis.call('HDEL', KEYS[1], 'dispatched_again', 'fell')
  enter_queue(r)
  redis.call('ZADD', r.dispatch, micros(now() + tonumber(ARGV[7])), run_name(r))
  answer = {'again', micros(r.run), r.options or ''}
else
  local canceled = r.asked_to_cancel == '1'
  write_status(KEYS, r, canceled and CANCELED or FAILED, canceled and '0' or '1', ARGV[canceled and 4 or 3])
  retire(KEYS, r, not canceled and ARGV[8])
  answer = {canceled and 'canceled' or 'failed'}
end
tally(r, 'lost', r.handed_back == ARGV[1] and 'handed_back' or answer[1])
save(KEYS, r)
wake(KEYS, r)
return answer
