-- save_task: a task as another engine (the SDK's own request handler) wrote it, with compare-and-swap on the version.
-- A task that has ended stays as it is.
-- KEYS  a task's ten
-- ARGV  [1] task id  [2] context id  [3] scope  [4] scope index  [5] context index  [6] owner  [7] retention, s
--       [8] leases key  [9] dispatch key  [10] version it was derived from, 0 for a first write
--       [11] '1' if it may overwrite any live version (CANCELED)  then either
--       [12] 'event' [13…17] one event, or
--       [12] 'task' [13…] what replace_task takes
-- returns {'saved', version} | {'stale', version stored (0 for none)} | {'blobs_expired'}: its blobs may be removed
-- requires: blobs, events, notifications, replacement, retirement, states, tasks, time
local r = load_record(KEYS)
local stored = r and r.version or 0
if r and r.scope ~= ARGV[3] then return {'stale', '0'} end
local fits = stored == tonumber(ARGV[10])
if ARGV[11] == '1' then fits = r ~= nil end
if not fits or (r and TERMINAL[r.state]) then return {'stale', micros(stored)} end
if not r and lacks_blobs(KEYS, ARGV[8], ARGV[13]) then return {'blobs_expired'} end
if not r then
  redis.call('HSET', KEYS[1], 'task_id', ARGV[1], 'context', ARGV[2], 'scope', ARGV[3], 'scope_index', ARGV[4],
    'context_index', ARGV[5], 'agent', '', 'owner', ARGV[6], 'retention', ARGV[7], 'leases', ARGV[8],
    'dispatch', ARGV[9], 'request', '', 'caller', '')
  r = {task_id = ARGV[1], scope = ARGV[3], scope_index = ARGV[4], context_index = ARGV[5], retention = ARGV[7], leases = ARGV[8],
    dispatch = ARGV[9], state = 0, version = 0, run = 0, phase = '', token = '', runner = '', seq = 0, turn = 1,
    attempt = 1, cancel_requested = '0', nonce = '', has_message = '0'}
end
if ARGV[12] == 'event' then
  apply_events(KEYS, r, 13)
else
  replace_task(KEYS, r, 13)
end
save_record(KEYS, r)
if TERMINAL[r.state] then end_task(KEYS, r) end
notify(KEYS, r)
return {'saved', micros(r.version)}
