-- append: append all events of a claimed run to the log, or none. A terminal event ends the task and the run. A full
-- store accepts only small changes of the state.
-- returns {'written', version, state}, even for a repeated call | {'lost', see missing_events}
--       | {'illegal', number of the event, state}
-- requires: blobs, events, full_store, notifications, retirement, runs, states, stored_bytes, tasks, time

local missing_blob = missing_blobs(keys)
if missing_blob then return missing_blob end
local r = load_record(keys)
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if r.seq > written_count then return {'written', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(keys, r, written_count)
if missing then return {'lost', missing} end
local illegal = first_illegal(r, events)
if illegal then return {'illegal', micros(illegal), micros(r.state)} end
if changes_only_state(r, events) then allow_small_write(keys, events) else refuse_on_full_store(keys.record) end
add_size(r, keep_blobs(keys, r))
apply_events(keys, r, events)
observe_first_event(keys, r, written_count, events)
r.seq = written_count + #events
if TERMINAL[r.state] then end_task(keys, r) end
save_record(keys, r)
notify(keys, r)
return {'written', micros(r.version), micros(r.state)}
