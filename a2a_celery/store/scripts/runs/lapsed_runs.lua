-- lapsed_runs: runs whose lease is over; no task changes. Refused, if there are any, while the server refuses writes. A
-- lease that ends later than the longest one is shortened to that: the clock was set back after it was written.
-- KEYS  [1] leases
-- ARGV  [1] key prefix  [2] at most this many  [3] the latest µs that the clock can show, unless it jumped; '' for any
--       [4] longest lease, µs; '' for any
-- returns {task id, run, agent, attempt, how many there may be, '1' if it was handed back, its worker for Celery's listeners,
--   the plain Celery task that it calls or '', …}; leases of tasks that are gone are forgotten
-- requires: keys, time
local function call_of(options)
  -- RunOptions.to_json writes it before its arguments, which may be large, and JSON that is none to the store
  local name = string.match(options or '', '"call":{"task":(".-[^\\]")')
  local read, names = pcall(cjson.decode, '[' .. (name or '') .. ']')
  return read and names[1] or ''
end

local at = now()
if ARGV[4] ~= '' then
  local last = micros(at + tonumber(ARGV[4]))
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '(' .. last, '+inf')) do redis.call('ZADD', KEYS[1], last, name) end
end
if ARGV[3] ~= '' then at = math.min(at, tonumber(ARGV[3])) end
local lapsed = {}
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(at), 'LIMIT', 0, tonumber(ARGV[2]))
if due[1] then -- a server that refuses writes refuses this one, which changes nothing: no worker could renew its leases
  redis.call('ZADD', KEYS[1], 'XX', redis.call('ZSCORE', KEYS[1], due[1]), due[1])
end
for _, name in ipairs(due) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local r = redis.call('HMGET', ARGV[1] .. ':{' .. quoted(task_id) .. '}:task', 'run', 'agent', 'attempt', 'max_attempts',
    'returned_run', 'worker', 'options')
  if r[1] == run then
    local found = {task_id, run, r[2], r[3], r[4] or '1', r[5] == run and '1' or '0', r[6] or '', call_of(r[7])}
    for _, value in ipairs(found) do lapsed[#lapsed + 1] = value end
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return lapsed
