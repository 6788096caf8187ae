-- end_pauses: tasks whose clients did not answer in time. INPUT_REQUIRED or AUTH_REQUIRED → FAILED
-- KEYS  [1] pauses
-- ARGV  [1] key prefix  [2] at most this many
-- gives how many were due
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))
for _, name in ipairs(due) do
  local keys = keys_of(ARGV[1], name)
  local r = load(keys)
  if r and r.phase == '' and INTERRUPTED[r.state] then
    write_status(keys, r, FAILED, '1', r.unanswered)
    retire(keys, r)
    save(keys, r)
    wake(keys, r)
  end
  redis.call('ZREM', KEYS[1], name)
end
return #due
