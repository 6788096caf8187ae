-- append: events of a claimed run, all or none; a terminal one ends the task and the run. A full store takes small changes of
-- the state only.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before (a repeated call is answered, not
--       written)  [4…] events
-- returns {'written', version, state} | {'lost', see missing_events} | {'illegal', number of the event, state}
-- requires: events, full_store, notifications, retirement, runs, states, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
local before = tonumber(ARGV[3])
if r.seq > before then return {'written', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local illegal = first_illegal(r, 4)
if illegal then return {'illegal', micros(illegal), micros(r.state)} end
if changes_only_state(r, 4) then allow_small_write(KEYS, 4) else refuse_on_full_store(KEYS[1]) end
apply_events(KEYS, r, 4)
observe_first_event(KEYS, r, before, 4)
r.seq = before + (#ARGV - 3) / 5
if TERMINAL[r.state] then end_task(KEYS, r) end
save_record(KEYS, r)
notify(KEYS, r)
return {'written', micros(r.version), micros(r.state)}
