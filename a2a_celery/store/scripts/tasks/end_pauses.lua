-- end_pauses: tasks whose clients did not answer in time. INPUT_REQUIRED or AUTH_REQUIRED → FAILED
-- KEYS  [1] pauses
-- ARGV  [1] key prefix  [2] at most this many  [3] the latest µs that the clock can show, unless it jumped; '' for any
-- returns how many were due
-- requires: keys, notifications, retirement, states, status, tasks, time
local at = math.min(now(), tonumber(ARGV[3]) or math.huge)
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(at), 'LIMIT', 0, tonumber(ARGV[2]))
for _, name in ipairs(due) do
  local keys = keys_of(ARGV[1], name)
  local r = load_record(keys)
  if r and r.phase == '' and INTERRUPTED[r.state] then
    write_status(keys, r, FAILED, '1', r.pause_timeout)
    end_task(keys, r)
    save_record(keys, r)
    notify(keys, r)
  end
  redis.call('ZREM', KEYS[1], name)
end
return #due
