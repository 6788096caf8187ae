-- lapsed_runs: runs whose lease is over; nothing changes.
-- KEYS  [1] leases
-- ARGV  [1] key prefix  [2] at most this many
-- gives {task id, run, agent, attempt, how many there may be, '1' if it was handed back, its worker for Celery's listeners,
--   the plain Celery task that it calls or '', …}; leases of tasks that are gone are forgotten
local function call_of(options)
  -- RunOptions.to_json writes it before its arguments, which may be large, and JSON that is none to the store
  local name = string.match(options or '', '"call":{"task":(".-[^\\]")')
  local read, names = pcall(cjson.decode, '[' .. (name or '') .. ']')
  return read and names[1] or ''
end

local lapsed = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local r = redis.call('HMGET', ARGV[1] .. ':{' .. quoted(task_id) .. '}:task', 'run', 'agent', 'attempt', 'max_attempts',
    'handed_back', 'worker', 'options')
  if r[1] == run then
    local found = {task_id, run, r[2], r[3], r[4] or '1', r[5] == run and '1' or '0', r[6] or '', call_of(r[7])}
    for _, value in ipairs(found) do lapsed[#lapsed + 1] = value end
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return lapsed
