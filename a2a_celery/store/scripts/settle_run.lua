-- settle_run: the last events of a run, the end of its lease, and the next waiting turn. → terminal, or interrupted;
-- an interrupted task that a client asked to cancel → CANCELED
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run came before
--       [4] µs until the watcher publishes the next run  [5] answers that the agent's `ask` waits for, this one too
--       [6] pauses key  [7] µs until a pause ends, 0 for never  [8] the FAILED event that ends it  [9…] events
-- gives {'settled', version, state, next run ('' for none), its options} | {'lost'} | {'illegal', number of the event, state}
--       | {'open', state}: the task would be left in a state that nobody moves it on from
local r = load(KEYS)
if r and r.settled then
  local token, version, state, begun = string.match(r.settled, '^(%S+) (%d+) (%d+) (%d+)$')
  if token == ARGV[2] then return {'settled', version, state, begun, r.options} end
end
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] then return {'lost'} end
if r.phase ~= 'running' then return {'settled', micros(r.version), micros(r.state), '', ''} end
local before = tonumber(ARGV[3])
if r.seq <= before and #ARGV >= 9 then
  local illegal = first_illegal(r, 9)
  if illegal then return {'illegal', micros(illegal), micros(r.state)} end
  apply_events(KEYS, r, 9)
  r.seq = before + (#ARGV - 8) / 5
end
if INTERRUPTED[r.state] and r.asked_to_cancel == '1' then -- it paused before it heard of the cancel
  write_status(KEYS, r, CANCELED, '0', r.canceled)
end
local next_run, next_options = '', ''
if TERMINAL[r.state] then
  retire(KEYS, r)
elseif INTERRUPTED[r.state] then
  close_run(r)
  redis.call('HSET', KEYS[1], 'asked', ARGV[5])
  local waiting = next_waiting(KEYS)
  if waiting then
    local message, submitted, request, caller, options = unpack(waiting)
    begin_turn(KEYS, r, message, submitted, request, caller, options, tonumber(ARGV[4]))
    next_run, next_options = micros(r.run), options
    redis.call('HSET', KEYS[1], 'settled',
      table.concat({ARGV[2], micros(r.version), micros(r.state), next_run}, ' '))
  else
    redis.call('HSET', KEYS[1], 'pauses', ARGV[6], 'unanswered', ARGV[8])
    redis.call('ZADD', ARGV[6], ARGV[7] == '0' and '+inf' or micros(r.at + tonumber(ARGV[7])), tag(KEYS))
  end
end
save(KEYS, r)
wake(KEYS, r)
if r.phase == 'running' then return {'open', micros(r.state)} end
return {'settled', micros(r.version), micros(r.state), next_run, next_options}
