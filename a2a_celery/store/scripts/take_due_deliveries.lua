-- take_due_deliveries: lines to deliver events of, for one deliverer; each is due again when its lease is over.
-- KEYS  [1] deliveries
-- ARGV  [1] key prefix  [2] at most this many  [3] lease, µs  [4] token
-- gives {{task id, context, agent, config id, quoted, sealed, delivered, version, failures, µs since the first,
--       traceparent of the newest turn, µs now}, …};
--       lines to which nothing is owed, and those of tasks that are gone, are forgotten
local taken = {}
for _, name in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(now()), 'LIMIT', 0, tonumber(ARGV[2]))) do
  local task, config = string.match(name, '^(%S+) (%S+)$')
  local keys = keys_of(ARGV[1], task)
  local r = redis.call('HMGET', keys[1], 'task_id', 'context', 'agent', 'version', 'trace')
  local line = r[1] and load_line(keys, config)
  if line and line.delivered < tonumber(r[4]) then
    change_line(keys, config, 'token', ARGV[4])
    redis.call('ZADD', KEYS[1], micros(now() + tonumber(ARGV[3])), name)
    taken[#taken + 1] = {
      r[1], r[2], r[3], config, line.sealed, micros(line.delivered), r[4], micros(line.failures), micros(line.first_failed_at and now() - line.first_failed_at or 0),
      r[5] or trace_of(redis.call('HGET', keys[1], 'options') or ''), micros(now()),
    }
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return taken
