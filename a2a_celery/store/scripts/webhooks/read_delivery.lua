-- read_delivery: how a line stands, with its newest attempts.
-- KEYS  a task's ten
-- ARGV  [1] scope, '*' for any  [2] config id, quoted
-- returns nil when there is none | {µs now, its row, ids of the posts that were requested, attempts, the newest first}
-- requires: attempts, deliveries, delivery_rows, keys, tasks, time
local r = load_record(KEYS)
local line = r and (ARGV[1] == '*' or r.scope == ARGV[1]) and load_delivery(KEYS, ARGV[2])
if not line then return nil end
local due = redis.call('ZSCORE', r.deliveries, task_tag(KEYS) .. ' ' .. ARGV[2])
return {
  micros(now()), delivery_row(r, ARGV[2], line, due), redis.call('HGET', KEYS[9], ARGV[2] .. ':requested') or '',
  read_attempts(KEYS, ARGV[2]),
}
