-- lapsed_runs: return the store's time, and runs whose lease has expired. If there are such runs and Redis refuses writes, the script fails.
-- A lease that ends later than the longest lease was written before the clock was set back, and is shortened.
-- returns {current time in µs, then for each run: task id, run, agent, attempt, maximum attempts, '1' if its worker returned it, Celery node
--       name of its worker, name of the plain Celery task that it calls ('' for none)}. Leases of missing tasks are
--       removed from the list.
-- requires: keys, time

local function called_task(options)
  -- RunOptions.to_json writes the name before the arguments, which may be large and which cjson may not be able to decode
  local name = string.match(options or '', '"call":{"task":(".-[^\\]")')
  local is_read, names = pcall(cjson.decode, '[' .. (name or '') .. ']')
  return is_read and names[1] or ''
end

local at = now()
if longest_lease_us then
  local last = micros(at + longest_lease_us)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', leases, '(' .. last, '+inf')) do redis.call('ZADD', leases, last, name) end
end
local reply = {micros(at)}
local due = redis.call('ZRANGEBYSCORE', leases, '-inf', micros(at), 'LIMIT', 0, limit)
if due[1] then -- a write without effect, which fails if Redis refuses writes, because no worker could renew its leases
  redis.call('ZADD', leases, 'XX', redis.call('ZSCORE', leases, due[1]), due[1])
end
for _, name in ipairs(due) do
  local record, task_id, run = record_of_run(prefix, name)
  local r = redis.call('HMGET', record, 'run', 'agent', 'attempt', 'max_attempts',
    'returned_run', 'worker', 'options')
  if r[1] == run then
    local values = {task_id, run, r[2], r[3] or '1', r[4] or '1', r[5] == run and '1' or '0', r[6] or '', called_task(r[7])}
    for _, value in ipairs(values) do reply[#reply + 1] = value end
  else
    redis.call('ZREM', leases, name)
  end
end
return reply
