-- end_pauses: fail tasks whose clients did not answer in time. INPUT_REQUIRED or AUTH_REQUIRED → FAILED
-- KEYS  pauses
-- ARGV  key prefix, maximum number of tasks, upper bound for the current time in µs ('' for none)
-- returns the number of due pauses
-- requires: keys, notifications, retirement, states, status, tasks, time
local pauses = KEYS[1]
local prefix, limit, latest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

local at = math.min(now(), latest or math.huge)
local due = redis.call('ZRANGEBYSCORE', pauses, '-inf', micros(at), 'LIMIT', 0, limit)
for _, tag in ipairs(due) do
  local keys = keys_of(prefix, tag)
  local r = load_record(keys)
  if r and r.phase == '' and INTERRUPTED[r.state] then
    write_status(keys, r, FAILED, '1', r.pause_timeout)
    end_task(keys, r)
    save_record(keys, r)
    notify(keys, r)
  end
  redis.call('ZREM', pauses, tag)
end
return #due
