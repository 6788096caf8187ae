-- checkpoint: save the session of a run that continues. The task does not change.
-- returns {'saved'}, even for a repeated call | {'lost', see missing_events}
--       | {'conflict', version}: another run has saved the session since
-- requires: runs, tasks

local r = load_record(keys)
if not r or r.run ~= run or r.token ~= token or r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(keys, r, confirmed)
if missing then return {'lost', missing} end
return checkpoint_sections(keys, r)
