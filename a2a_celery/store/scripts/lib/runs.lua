-- requires: keys, metrics, time

local function run_name(r) return r.task_id .. '.' .. micros(r.run) end

-- Add the newest run to the list of queued runs that the record names, with the time in µs at which it was queued.
local function enter_queue(r)
  if r.queue then redis.call('ZADD', r.queue, 'NX', micros(now()), quoted(r.task_id)) end
end

local function leave_queue(r)
  if r.queue then redis.call('ZREM', r.queue, quoted(r.task_id)) end
end

-- Return '1' if a script has recorded that the broker has the message of the newest run, or if a worker has claimed the
-- run. Otherwise, return '0'.
local function is_published(keys, run)
  local published_at, phase = unpack(redis.call('HMGET', keys.record, 'published_at', 'phase'))
  local published_run = string.match(published_at or '', '^(%d+) ')
  return (phase ~= 'queued' or published_run == micros(run)) and '1' or '0'
end

-- Return the newest activities of the task, with which the execution of its next run begins.
local function newest_activities(keys) return redis.call('LRANGE', keys.execution, -100, -1) end

local function close_run(r)
  if r.phase == 'running' then observe_duration(r, 'run', r.claimed_at) end
  if r.phase == 'queued' then leave_queue(r) end
  redis.call('ZREM', r.leases, run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  if r.phase == 'delegated' then redis.call('ZREM', r.canvases, run_name(r)) end
  if r.phase == 'suspended' then redis.call('ZREM', r.suspended, run_name(r)) end
  r.phase, r.runner = '', ''
end

-- Record that the run that was claimed with `token` has left its worker. A repeated call then has the reply of the first
-- call, even if the next run has begun since. `next_run` is the run to publish, or ''.
local function record_settled(keys, r, token, next_run)
  local fields = {token, micros(r.version), micros(r.state), next_run == '' and '-' or next_run}
  redis.call('HSET', keys.record, 'settled', table.concat(fields, ' '))
end

-- If the run that was claimed with `token` is the last run that record_settled recorded, return version, state and the
-- run to publish ('' for none). Otherwise, return nil. `r` is nil if the task does not exist.
local function settled_before(r, token)
  local settled_token, version, state, next_run = string.match(r and r.settled or '', '^(%S+) (%d+) (%d+) (%S+)$')
  if settled_token == token then return version, state, next_run == '-' and '' or next_run end
end

-- Return the number of a claimed run's confirmed events that are missing, or nil if no event is missing. Events are
-- missing if the store was restored without its newest writes. In this case, refuse further writes of the run and end
-- its lease, so that a watcher lapses the run.
local function missing_events(keys, r, confirmed)
  if r.seq >= confirmed then return nil end
  redis.call('HSET', keys.record, 'token', '')
  redis.call('ZADD', r.leases, micros(now()), run_name(r))
  return micros(confirmed - r.seq)
end
