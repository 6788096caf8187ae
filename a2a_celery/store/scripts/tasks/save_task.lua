-- save_task: save a task of another engine (the SDK's own request handler), with compare-and-swap on the version. An
-- ended task does not change.
-- KEYS  keys of the task
-- ARGV  task id, context id, scope, scope index, context index, retention in seconds, list of leases, list of
--       queued runs, version from which the task was derived (0 for a first write), '1' to overwrite any live version
--       (CANCELED), then 'event' and one event, or 'task' and the arguments of replace_task
-- returns {'saved', version} | {'stale', stored version (0 for none in the scope)} | {'blobs_expired'}: the blobs may
--       have been removed
-- requires: blobs, events, notifications, replacement, retirement, states, stored_bytes, tasks, time
local record = KEYS[1]
local task_id, context_id, scope, scope_index, context_index, retention, leases, dispatch = unpack(ARGV, 1, 8)
local previous, overwrites, kind, task_event, first_content = tonumber(ARGV[9]), ARGV[10] == '1', ARGV[11], ARGV[12], 12

local r = load_record(KEYS)
local stored = r and r.version or 0
if r and r.scope ~= scope then return {'stale', '0'} end
local fits = stored == previous
if overwrites then fits = r ~= nil end
if not fits or (r and TERMINAL[r.state]) then return {'stale', micros(stored)} end
if not r and lacks_blobs(KEYS, leases, task_event) then return {'blobs_expired'} end
if not r then
  redis.call('HSET', record, 'task_id', task_id, 'context', context_id, 'scope', scope, 'scope_index', scope_index,
    'context_index', context_index, 'agent', '', 'retention', retention, 'leases', leases,
    'dispatch', dispatch, 'request', '', 'caller', '')
  r = with_defaults({task_id = task_id, context = context_id, scope = scope, scope_index = scope_index,
    context_index = context_index, retention = retention, leases = leases, dispatch = dispatch, state = 0, version = 0,
    run = 0, seq = 0, turn = 1, attempt = 1})
end
add_size(r, adopt_blobs(KEYS, r))
if kind == 'event' then
  apply_events(KEYS, r, first_content)
else
  replace_task(KEYS, r, first_content)
end
if TERMINAL[r.state] then end_task(KEYS, r) end
save_record(KEYS, r)
notify(KEYS, r)
return {'saved', micros(r.version)}
