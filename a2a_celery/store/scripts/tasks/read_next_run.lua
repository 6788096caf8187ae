-- read_next_run: return the number of the run that the next message to a task begins.
-- KEYS  keys of the task
-- ARGV  none
-- returns nil: the task does not exist, or a run is open | the number
-- requires: time
local record = KEYS[1]

local run, phase = unpack(redis.call('HMGET', record, 'run', 'phase'))
return run and (phase or '') == '' and micros(run + 1) or nil
