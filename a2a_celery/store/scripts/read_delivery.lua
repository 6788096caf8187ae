-- read_delivery: how a line stands.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted
-- gives nil when there is none | {µs now, its row}
local r = load(KEYS)
local line = r and load_line(KEYS, ARGV[1])
if not line then return nil end
return {micros(now()), line_row(r, ARGV[1], line, redis.call('ZSCORE', r.deliveries, tag(KEYS) .. ' ' .. ARGV[1]))}
