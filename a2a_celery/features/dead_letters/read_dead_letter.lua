-- read_dead_letter: return the data from which a dead letter can be requeued as a new task.
-- returns {'missing'} | {'requeued', id of the new task} | {'alive', state}
--       | {'ended', state}: the task ended without a dead letter
--       | {'dead', agent, scope, request, options, snapshot, turn_messages, {key, entry, …} for the journal entries whose
--       contents are blobs}
-- requires: journal, keys, snapshot, states, tasks, time

local r = load_record(keys)
if not r then return {'missing'} end
if r.requeued_as then return {'requeued', r.requeued_as} end
if not TERMINAL[r.state] then return {'alive', micros(r.state)} end
if not redis.call('ZSCORE', resubmittable, task_tag(keys)) then return {'ended', micros(r.state)} end
local entries = from_start and {} or entries_with_blobs(keys, r)
return {'dead', r.agent, r.scope, r.request, r.options or '', snapshot(keys, r, -1, false),
  r.turn > 1 and r.turn_messages or '', entries}
