-- end_pauses: fail tasks whose clients did not answer in time. INPUT_REQUIRED or AUTH_REQUIRED → FAILED
-- returns the number of due pauses
-- requires: keys, notifications, retirement, states, status, tasks, time

local due = redis.call('ZRANGEBYSCORE', pauses, '-inf', micros(now()), 'LIMIT', 0, limit)
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
