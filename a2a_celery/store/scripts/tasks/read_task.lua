-- read_task: the snapshot, in one piece.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2] history length, -1 for all  [3] '1' with artifacts  [4] '1' only if it has ended or
--       waits for its client
-- returns nil: no such task | {}: it goes on | the snapshot (see lib/snapshot.lua)
-- requires: snapshot, states
local r = load_summary(KEYS)
if not r or (ARGV[1] ~= '*' and r.scope ~= ARGV[1]) then return nil end
if ARGV[4] == '1' and not (TERMINAL[r.state] or INTERRUPTED[r.state]) then return {} end
return snapshot(KEYS, r, tonumber(ARGV[2]), ARGV[3] == '1')
