-- requeue_task: a dead letter becomes a new task of the same caller, in the same context and turn, with its first run and
-- the promise to dispatch it. (none) → SUBMITTED; the dead task stays FAILED
-- KEYS  the dead task's ten, then the new one's
-- ARGV  [1] dead letters key  [2] the new task's id  [3] its retention, s  [4] µs until the watcher publishes the run
--       [5] request  [6] options of the run  [7] the event WORKING  [8…] the new task: what replace_task takes
-- gives {'requeued'}, also for a repeated call | {'behind'}: so, but another run of its context comes first
--       | {'unkept'}: its blobs may be removed  | {'gone'}: no dead letter, or not any more
local dead = load(KEYS)
if dead and dead.requeued_as == ARGV[2] then return {'requeued'} end
if dead and unkept({unpack(KEYS, 11, 20)}, dead.leases, ARGV[8]) then return {'unkept'} end
if not dead or redis.call('ZREM', ARGV[1], tag(KEYS)) == 0 then return {'gone'} end
local new = {unpack(KEYS, 11, 20)}
redis.call('HSET', new[1], 'task_id', ARGV[2], 'context', dead.context, 'scope', dead.scope,
  'scope_index', dead.scope_index, 'context_index', dead.context_index, 'agent', dead.agent, 'owner', dead.owner,
  'retention', ARGV[3], 'leases', dead.leases, 'dispatch', dead.dispatch, 'request', ARGV[5], 'caller', dead.caller,
  'working', ARGV[7], 'asked', dead.asked or '0',
  'requeued_from', (dead.requeued_from or '') .. quoted(dead.task_id) .. ' ')
keep_options(new[1], ARGV[6])
if dead.queue then redis.call('HSET', new[1], 'queue', dead.queue) end
if dead.row then redis.call('HSET', new[1], 'row', dead.row) end
if dead.paused_in then redis.call('HSET', new[1], 'paused_in', dead.paused_in) end
local r = {task_id = ARGV[2], scope_index = dead.scope_index, context_index = dead.context_index, retention = ARGV[3],
  state = 0, has_message = '0', version = 0, run = 1, phase = 'queued', token = '', runner = '', seq = 0,
  row = dead.row, queue = dead.queue, dispatch = dead.dispatch, turn = dead.turn, attempt = 1, asked_to_cancel = '0', nonce = ''}
replace_task(new, r, 8)
save(new, r)
queue_run(new, r, r.at + tonumber(ARGV[4]))
redis.call('HDEL', KEYS[1], 'request', 'caller', 'options', 'begins_at')
redis.call('HSET', KEYS[1], 'requeued_as', ARGV[2])
return {stands_behind(new, r) and 'behind' or 'requeued'}
