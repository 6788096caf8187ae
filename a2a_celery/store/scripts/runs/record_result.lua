-- record_result: the state that the result backend has of a run which went to a worker without this package. WORKING → WORKING,
-- SUBMITTED → WORKING. The run stays queued: such a worker claims none.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] the state that was noted before, '' for none  [3] the state to note  [4…] its event; without [2] and
--       further arguments nothing is written
-- returns {'unchanged'}: there is no such run of a plain task, or a worker with this package has it or has retried it
--       | {'unclaimed', context, the state noted last, '' for none}: nothing is written, because it is not [2]
--       | {'written', version, state}
-- requires: events, notifications, runs, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.phase ~= 'queued' then return {'unchanged'} end
if string.match(r.retry_state or '', '^%d+') == ARGV[1] then return {'unchanged'} end
if not string.find(r.options or '', '"call":{', 1, true) then return {'unchanged'} end
local noted = r.recorded_result or ''
if #ARGV > 1 and noted == ARGV[3] then return {'written', micros(r.version), micros(r.state)} end -- a repeated call
if #ARGV == 1 or noted ~= ARGV[2] then return {'unclaimed', r.context, noted} end
if first_illegal(r, 4) then return {'unchanged'} end
allow_small_write(KEYS, 4)
apply_events(KEYS, r, 4)
leave_queue(r) -- it waits for no worker any more
redis.call('HSET', KEYS[1], 'recorded_result', ARGV[3])
save_record(KEYS, r)
notify(KEYS, r)
return {'written', micros(r.version), micros(r.state)}
