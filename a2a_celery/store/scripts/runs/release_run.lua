-- release_run: release a claimed run from its worker. The run is queued for a retry, or delegated to a canvas. The
-- events determine the state; → CANCELED if a client requested cancellation. If a message interrupts the run, the
-- turn of the message begins instead. Small events are written even to a full store.
-- returns {'released', version, state} | {'lost', see missing_events} | {'illegal', number of the event, state}
-- requires: dispatch, incoming, notifications, replacement, runs, states, tasks, time

local r = load_record(keys)
local version, state = settled_before(r, token)
if version then return {'released', version, state} end
if not r or r.run ~= run or r.token ~= token then return {'lost'} end
if TERMINAL[r.state] then return {'released', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local refusal = apply_last_events(keys, r, written_count, events, replacement)
if refusal then return refusal end
if not end_stopped_run(keys, r) then
  close_run(r)
  r.phase, r.seq = canvas and 'delegated' or 'queued', 0
  if not canvas then
    queue_retry(keys, r, options, retries, delay_us)
  else
    redis.call('HSET', keys.record, 'canvas', canvas, 'canvases', canvases)
    redis.call('ZADD', canvases, micros(now() + delay_us), run_name(r))
  end
end
if not TERMINAL[r.state] then record_settled(keys, r, token, '') end
save_record(keys, r)
notify(keys, r)
return {'released', micros(r.version), micros(r.state)}
