-- read_task: return the snapshot of a task.
-- returns nil: the task does not exist | {}: its state is not final | the snapshot (see lib/snapshot.lua)
-- requires: snapshot, states

local r = load_summary(keys)
if not r or (scope ~= '*' and r.scope ~= scope) then return nil end
if final_only and not (TERMINAL[r.state] or INTERRUPTED[r.state]) then return {} end
return snapshot(keys, r, history_length or -1, artifacts)
