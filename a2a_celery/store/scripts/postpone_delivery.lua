-- postpone_delivery: a line is given back, and due again later.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] token  [3] µs until it is due  [4] '1' if that counts as a failure, 'age' if it is
--       none, but its failing begins with it at the latest
--       [5] JSON: what an operator wants to know of it, '' for nothing
-- gives 1, or 0 when the line is gone, or another's
local r = load(KEYS)
if not r then return 0 end
local line, repeated = held_line(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 1 or 0 end
change_line(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2])
if ARGV[4] == '1' then
  count(r, 'failed')
  change_line(KEYS, ARGV[1], 'failures', micros(line.failures + 1))
end
if ARGV[4] ~= '0' then change_line(KEYS, ARGV[1], 'first_failed_at', line.first_failed_at or micros(now())) end
if ARGV[5] ~= '' then change_line(KEYS, ARGV[1], 'said', ARGV[5], 'said_at', micros(now())) end
due_in(KEYS, r, ARGV[1], line.delivered, tonumber(ARGV[3]))
return 1
