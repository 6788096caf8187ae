-- record_result: record the state that the result backend reports for a run that a worker without this package
-- executes. SUBMITTED or WORKING → WORKING. The run stays queued, because such a worker does not claim the run.
-- KEYS  keys of the task
-- ARGV  run. To write, also: state that was recorded before ('' for none), state to record, event of the state
-- returns {'unchanged'}: the run does not exist, is not a run of a plain task, or was claimed or retried by a worker
--       with this package
--       | {'unclaimed', context, recorded state ('' for none)}: the call only reads, or another state was recorded
--       since
--       | {'written', version, state}
-- requires: events, notifications, runs, tasks, time
local record = KEYS[1]
local run, before, state, first_event = ARGV[1], ARGV[2], ARGV[3], 4

local r = load_record(KEYS)
if not r or r.run ~= tonumber(run) or r.phase ~= 'queued' then return {'unchanged'} end
if string.match(r.retry_state or '', '^%d+') == run then return {'unchanged'} end
if not string.find(r.options or '', '"call":{', 1, true) then return {'unchanged'} end
local recorded = r.recorded_result or ''
if state and recorded == state then return {'written', micros(r.version), micros(r.state)} end -- a repeated call
if not state or recorded ~= before then return {'unclaimed', r.context, recorded} end
if first_illegal(r, first_event) then return {'unchanged'} end
allow_small_write(KEYS, first_event)
apply_events(KEYS, r, first_event)
leave_queue(r) -- a worker has started the run
redis.call('HSET', record, 'recorded_result', state)
save_record(KEYS, r)
notify(KEYS, r)
return {'written', micros(r.version), micros(r.state)}
