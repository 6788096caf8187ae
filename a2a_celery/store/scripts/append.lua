-- append: events of a claimed run, all or none; a terminal one ends the task and the run.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before (a repeated call is answered, not
--       written)  [4…] events
-- gives {'written', version, state} | {'lost', see missing_events} | {'illegal', number of the event, state}
local r = load(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
local before = tonumber(ARGV[3])
if r.seq > before then return {'written', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, before)
if missing then return {'lost', missing} end
local illegal = first_illegal(r, 4)
if illegal then return {'illegal', micros(illegal), micros(r.state)} end
apply_events(KEYS, r, 4)
took_first(KEYS, r, before, 4)
r.seq = before + (#ARGV - 3) / 5
if TERMINAL[r.state] then retire(KEYS, r) end
save(KEYS, r)
wake(KEYS, r)
return {'written', micros(r.version), micros(r.state)}
