-- release_run: release a claimed run from its worker. The run is queued for a retry, or delegated to a canvas. The
-- events determine the state; → CANCELED if a client requested cancellation. If a message interrupts the run, the
-- turn of the message begins instead. Small events are written even to a full store.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of records that the run wrote earlier, 'queued' or 'delegated', options of the
--       run or JSON of the canvas, number of retries, list of delegated runs, µs until a watcher publishes the run or
--       polls the canvas, number of arguments of the events, events, and the arguments of replace_task if the task is
--       replaced before the events are written
-- returns {'released', version, state} | {'lost', see missing_events} | {'illegal', number of the event, state}
-- requires: dispatch, incoming, notifications, replacement, runs, states, tasks, time
local record = KEYS[1]
local run, token, before, phase = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local content, retries, canvases, due_us = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local first_event, last_event = 10, 9 + tonumber(ARGV[9])

local r = load_record(KEYS)
local version, state = settled_before(r, token)
if version then return {'released', version, state} end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if TERMINAL[r.state] then return {'released', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local refusal = apply_last_events(KEYS, r, before, first_event, last_event)
if refusal then return refusal end
if not end_stopped_run(KEYS, r) then
  close_run(r)
  r.phase, r.seq = phase, 0
  if phase == 'queued' then
    queue_retry(KEYS, r, content, retries, due_us)
  else
    redis.call('HSET', record, 'canvas', content, 'canvases', canvases)
    redis.call('ZADD', canvases, micros(now() + due_us), run_name(r))
  end
end
if not TERMINAL[r.state] then record_settled(KEYS, r, token, '') end
save_record(KEYS, r)
notify(KEYS, r)
return {'released', micros(r.version), micros(r.state)}
