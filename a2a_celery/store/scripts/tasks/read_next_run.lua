-- read_next_run: return the number of the run that the next message to a task begins.
-- returns nil: the task does not exist, or a run is open | the number
-- requires: time

local run, phase = unpack(redis.call('HMGET', keys.record, 'run', 'phase'))
return run and (phase or '') == '' and micros(run + 1) or nil
