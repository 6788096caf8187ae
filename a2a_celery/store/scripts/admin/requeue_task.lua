-- requeue_task: a dead letter becomes a new task of the same caller, in the same context and turn, with its first run and
-- the promise to dispatch it. (none) → SUBMITTED; the dead task stays FAILED
-- KEYS  the dead task's ten, then the new one's
-- ARGV  [1] dead letters key  [2] the new task's id  [3] its retention, s  [4] µs until the watcher publishes the run
--       [5] request  [6] options of the run  [7] the event WORKING  [8…] the new task: what replace_task takes
-- returns {'requeued'}, also for a repeated call | {'blocked'}: so, but another run of its context comes first
--       | {'blobs_expired'}: its blobs may be removed  | {'gone'}: no dead letter, or not any more
-- requires: blobs, context_queue, dispatch, full_store, keys, options, replacement, stored_bytes, tasks
local dead = load_record(KEYS)
if dead and dead.requeued_as == ARGV[2] then return {'requeued'} end
refuse_on_full_store(KEYS[1])
if dead and lacks_blobs({unpack(KEYS, 11, 20)}, dead.leases, ARGV[8]) then return {'blobs_expired'} end
if not dead or redis.call('ZREM', ARGV[1], task_tag(KEYS)) == 0 then return {'gone'} end
local new = {unpack(KEYS, 11, 20)}
redis.call('HSET', new[1], 'task_id', ARGV[2], 'context', dead.context, 'scope', dead.scope,
  'scope_index', dead.scope_index, 'context_index', dead.context_index, 'agent', dead.agent, 'owner', dead.owner,
  'retention', ARGV[3], 'leases', dead.leases, 'dispatch', dead.dispatch, 'request', ARGV[5], 'caller', dead.caller,
  'working_event', ARGV[7], 'ask_count', dead.ask_count or '0',
  'requeued_from', (dead.requeued_from or '') .. quoted(dead.task_id) .. ' ')
set_options(new[1], ARGV[6])
if dead.queue then redis.call('HSET', new[1], 'queue', dead.queue) end
if dead.context_queue then redis.call('HSET', new[1], 'context_queue', dead.context_queue) end
if dead.interrupted_state then redis.call('HSET', new[1], 'interrupted_state', dead.interrupted_state) end
local r = {task_id = ARGV[2], scope_index = dead.scope_index, context_index = dead.context_index, retention = ARGV[3],
  scope = dead.scope, leases = dead.leases, quota_account = dead.quota_account,
  state = 0, has_message = '0', version = 0, run = 1, phase = 'queued', token = '', runner = '', seq = 0,
  context_queue = dead.context_queue, queue = dead.queue, dispatch = dead.dispatch, turn = dead.turn, attempt = 1, cancel_requested = '0', nonce = ''}
if dead.quota_account then
  redis.call('HSET', new[1], 'quota_account', dead.quota_account)
  add_size(r, size_of_request(new))
end
replace_task(new, r, 8)
save_record(new, r)
queue_run(new, r, r.at + tonumber(ARGV[4]))
redis.call('HDEL', KEYS[1], 'request', 'caller', 'options', 'begins_at')
redis.call('HSET', KEYS[1], 'requeued_as', ARGV[2])
return {is_blocked(new, r) and 'blocked' or 'requeued'}
