-- suspend_run: release a claimed run until a time, or until a signal arrives. The next run of the turn is suspended. If
-- the signal has arrived, the awaited task is final or the time has passed, the next run is queued immediately. → CANCELED if
-- a client requested cancellation. If a message interrupts the run, the turn of the message begins instead. Small
-- events are written even to a full store.
-- returns {'suspended', version, state, run to publish ('' for none)} | {'lost', see missing_events}
--       | {'illegal', number of the event, state}
-- requires: incoming, keys, notifications, options, publication, replacement, runs, signals, states, suspension, task_waits, tasks, time

local r = load_record(keys)
local version, state, known_run = settled_before(r, token)
if version then return {'suspended', version, state, known_run} end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if TERMINAL[r.state] then return {'suspended', micros(r.version), micros(r.state), ''} end
if r.phase ~= 'running' then return {'lost'} end
local refusal = apply_last_events(keys, r, written_count, events, replacement)
if refusal then return refusal end
local next_run = ''
if not end_stopped_run(keys, r) then
  close_run(r)
  r.run, r.seq, r.token, r.phase = r.run + 1, 0, '', 'suspended'
  replace_options(keys, r, options)
  redis.call('HSET', keys.record, 'suspended', suspended, 'wait_signal', wait.signal, 'wait_key', wait.key,
    'wait_header', wait.header, 'wait_timeout', wait.timeout)
  local due = wait.until_us or wait.wait_us and now() + wait.wait_us or math.huge
  local awaited = wait.task and keys_of(prefix_of(keys), quoted(wait.task))
  local payload = awaited and is_final(awaited) and '' or wait.signal ~= '' and pop_signal(keys, r, wait.signal)
  if payload or due <= now() then
    resume_run(keys, r, payload, FIRST_PUBLISH_GRACE_US)
    next_run = micros(r.run)
  else
    redis.call('ZADD', suspended, due == math.huge and '+inf' or micros(due), run_name(r))
    if awaited then await_task(awaited, r.task_id, r.turn, wait.signal) end
    suspended_sections(keys, r, due < math.huge and math.ceil((due - now()) / 1000000) or 0)
  end
end
if not TERMINAL[r.state] then record_settled(keys, r, token, next_run) end
save_record(keys, r)
notify(keys, r)
return {'suspended', micros(r.version), micros(r.state), next_run}
