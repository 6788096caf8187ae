-- record_result: record the state that the result backend reports for a run that a worker without this package
-- executes. SUBMITTED or WORKING → WORKING. The run stays queued, because such a worker does not claim the run.
-- returns {'unchanged'}: the run does not exist, is not a run of a plain task, or was claimed or retried by a worker
--       with this package
--       | {'unclaimed', context, recorded state ('' for none)}: the call only reads, or another state was recorded
--       since
--       | {'written', version, state}
-- requires: events, notifications, runs, tasks, time

local r = load_record(keys)
if not r or r.run ~= run or r.phase ~= 'queued' then return {'unchanged'} end
if string.match(r.retry_state or '', '^%d+') == micros(run) then return {'unchanged'} end
if not string.find(r.options or '', '"call":{', 1, true) then return {'unchanged'} end
local recorded = r.recorded_result or ''
if observed and recorded == observed.state then return {'written', micros(r.version), micros(r.state)} end -- a repeated call
if not observed or recorded ~= observed.previous_state then return {'unclaimed', r.context, recorded} end
if first_illegal(r, {observed.event}) then return {'unchanged'} end
allow_small_write(keys, {observed.event})
apply_events(keys, r, {observed.event})
leave_queue(r) -- a worker has started the run
redis.call('HSET', keys.record, 'recorded_result', observed.state)
save_record(keys, r)
notify(keys, r)
return {'written', micros(r.version), micros(r.state)}
