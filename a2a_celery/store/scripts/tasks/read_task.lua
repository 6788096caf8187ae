-- read_task: return the snapshot of a task.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), history length (-1 for all), '1' to read the artifacts, '1' to return only the snapshot of
--       a final state
-- returns nil: the task does not exist | {}: its state is not final | the snapshot (see lib/snapshot.lua)
-- requires: snapshot, states
local scope, history_length, with_artifacts, final_only = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', ARGV[4] == '1'

local r = load_summary(KEYS)
if not r or (scope ~= '*' and r.scope ~= scope) then return nil end
if final_only and not (TERMINAL[r.state] or INTERRUPTED[r.state]) then return {} end
return snapshot(KEYS, r, history_length, with_artifacts)
