-- release_run: a claimed run goes on without its worker: it waits for one again (a retry), or a canvas works for it.
-- any live state → what the events say; → CANCELED if a client asked for that
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before  [4] 'queued' or 'handed'
--       [5] options of the run, or the canvas  [6] how often it was retried  [7] canvases key
--       [8] µs until a watcher publishes the run, or looks at the canvas  [9…] events
-- gives {'released', version, state} | {'lost', see missing_events} | {'illegal', number of the event, state}
local r = load(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
if r.phase == ARGV[4] or TERMINAL[r.state] then return {'released', micros(r.version), micros(r.state)} end
if r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, tonumber(ARGV[3]))
if missing then return {'lost', missing} end
local illegal = first_illegal(r, 9)
if illegal then return {'illegal', micros(illegal), micros(r.state)} end
apply_events(KEYS, r, 9)
if r.asked_to_cancel == '1' then
  write_status(KEYS, r, CANCELED, '0', r.canceled)
  retire(KEYS, r)
else
  close_run(r)
  r.phase, r.seq = ARGV[4], 0
  if ARGV[4] == 'queued' then
    keep_options(KEYS[1], ARGV[5])
    redis.call('HSET', KEYS[1], 'retried', ARGV[1] .. ' ' .. ARGV[6])
    redis.call('HDEL', KEYS[1], 'dispatched_again', 'held', 'published_at')
    enter_queue(r)
    redis.call('ZADD', r.dispatch, micros(now() + tonumber(ARGV[8])), run_name(r))
  else
    redis.call('HSET', KEYS[1], 'canvas', ARGV[5], 'canvases', ARGV[7])
    redis.call('ZADD', ARGV[7], micros(now() + tonumber(ARGV[8])), run_name(r))
  end
end
save(KEYS, r)
wake(KEYS, r)
return {'released', micros(r.version), micros(r.state)}
