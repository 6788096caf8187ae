-- release_run: a claimed run goes on without its worker: it waits for one again (a retry), or a canvas works for it.
-- any live state → what the events say; → CANCELED if a client asked for that. A full store takes small events.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before  [4] 'queued' or 'delegated'
--       [5] options of the run, or the canvas  [6] how often it was retried  [7] canvases key
--       [8] µs until a watcher publishes the run, or looks at the canvas  [9] how many arguments the events are
--       [10…] events, then what replace_task takes, if the task shall be replaced before them
-- returns {'released', version, state} | {'lost', see missing_events} | {'illegal', number of the event, state}
-- requires: dispatch, events, notifications, replacement, retirement, runs, states, status, tasks, time
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
if r.phase == ARGV[4] or TERMINAL[r.state] then return {'released', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, tonumber(ARGV[3]))
if missing then return {'lost', missing} end
local last = 9 + tonumber(ARGV[9])
local illegal = first_illegal(r, 10, last)
if illegal then return {'illegal', micros(illegal), micros(r.state)} end
local replacement = 0 -- bytes
for i = last + 1, #ARGV do replacement = replacement + #ARGV[i] end
allow_small_write(KEYS, 10, replacement, last)
if #ARGV > last then replace_task(KEYS, r, last + 1) end
apply_events(KEYS, r, 10, last)
if r.cancel_requested == '1' then
  write_status(KEYS, r, CANCELED, '1', r.canceled_event)
  end_task(KEYS, r)
else
  close_run(r)
  r.phase, r.seq = ARGV[4], 0
  if ARGV[4] == 'queued' then
    queue_retry(KEYS, r, ARGV[5], ARGV[6], ARGV[8])
  else
    redis.call('HSET', KEYS[1], 'canvas', ARGV[5], 'canvases', ARGV[7])
    redis.call('ZADD', ARGV[7], micros(now() + tonumber(ARGV[8])), run_name(r))
  end
end
save_record(KEYS, r)
notify(KEYS, r)
return {'released', micros(r.version), micros(r.state)}
