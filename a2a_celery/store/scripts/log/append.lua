-- append: append all events of a claimed run to the log, or none. A terminal event ends the task and the run. A full
-- store accepts only small changes of the state.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of records that the run wrote earlier, events
-- returns {'written', version, state}, even for a repeated call | {'lost', see missing_events}
--       | {'illegal', number of the event, state}
-- requires: blobs, events, full_store, notifications, retirement, runs, states, stored_bytes, tasks, time
local record = KEYS[1]
local run, token, before, first_event = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), 4

local r = load_record(KEYS)
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if r.seq > before then return {'written', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local illegal = first_illegal(r, first_event)
if illegal then return {'illegal', micros(illegal), micros(r.state)} end
if changes_only_state(r, first_event) then allow_small_write(KEYS, first_event) else refuse_on_full_store(record) end
add_size(r, adopt_blobs(KEYS, r))
apply_events(KEYS, r, first_event)
observe_first_event(KEYS, r, before, first_event)
r.seq = before + (#ARGV - first_event + 1) / 5
if TERMINAL[r.state] then end_task(KEYS, r) end
save_record(KEYS, r)
notify(KEYS, r)
return {'written', micros(r.version), micros(r.state)}
