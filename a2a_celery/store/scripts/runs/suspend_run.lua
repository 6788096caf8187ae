-- suspend_run: release a claimed run until a time, or until a signal arrives. The next run of the turn is suspended. If
-- the signal has arrived, the child has ended or the time has passed, the next run is queued immediately. → CANCELED if
-- a client requested cancellation. If a message interrupts the run, the turn of the message begins instead. Small
-- events are written even to a full store.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of records that the run wrote earlier, list of suspended runs, name of the
--       signal ('' for a time only), µs until the run continues ('' for no limit), time in µs since 1970 at which the
--       run continues instead ('' for none), key, header and timeout of the journal entry as in record_wait, options of
--       the next run, µs until a watcher publishes a queued run, key of the session whose lifetime is extended by the
--       wait ('' for none), number of arguments of the events, events, and the arguments of replace_task if the task is
--       replaced before the events are written
-- returns {'suspended', version, state, run to publish ('' for none)} | {'lost', see missing_events}
--       | {'illegal', number of the event, state}
-- requires: child_waits, incoming, notifications, options, replacement, runs, sessions, signals, states, suspension, tasks, time
local record = KEYS[1]
local run, token, before, suspended = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local signal, wait_us, until_us, wait_key, wait_header, wait_timeout = unpack(ARGV, 5, 10)
local options, due_us, session = ARGV[11], tonumber(ARGV[12]), ARGV[13]
local first_event, last_event = 15, 14 + tonumber(ARGV[14])

local r = load_record(KEYS)
local version, state, known_run = settled_before(r, token)
if version then return {'suspended', version, state, known_run} end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if TERMINAL[r.state] then return {'suspended', micros(r.version), micros(r.state), ''} end
if r.phase ~= 'running' then return {'lost'} end
local refusal = apply_last_events(KEYS, r, before, first_event, last_event)
if refusal then return refusal end
local next_run = ''
if not end_stopped_run(KEYS, r) then
  close_run(r)
  r.run, r.seq, r.token, r.phase = r.run + 1, 0, '', 'suspended'
  replace_options(KEYS, r, options)
  redis.call('HSET', record, 'suspended', suspended, 'wait_signal', signal, 'wait_key', wait_key, 'wait_header', wait_header,
    'wait_timeout', wait_timeout)
  local due = until_us ~= '' and tonumber(until_us) or wait_us ~= '' and now() + tonumber(wait_us) or math.huge
  local payload = signal ~= '' and pop_signal(KEYS, r, signal) or is_child_final(KEYS, signal) and ''
  if payload or due <= now() then
    resume_run(KEYS, r, payload, due_us)
    next_run = micros(r.run)
  else
    redis.call('ZADD', suspended, due == math.huge and '+inf' or micros(due), run_name(r))
    if session ~= '' then
      renew_session(r, session, due < math.huge and math.ceil((due - now()) / 1000000) or 0) -- because the next run needs the session
    end
  end
end
if not TERMINAL[r.state] then record_settled(KEYS, r, token, next_run) end
save_record(KEYS, r)
notify(KEYS, r)
return {'suspended', micros(r.version), micros(r.state), next_run}
