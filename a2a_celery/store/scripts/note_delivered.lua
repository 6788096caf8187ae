-- note_delivered: a line's events were delivered, or need not be, up to a version; the lease begins anew.
-- KEYS  a task's ten
-- ARGV  [1] config id, quoted  [2] token  [3] version  [4] lease, µs  [5] '1' if the last of them was posted
-- gives 'more': it is still in hand | 'done': nothing is owed to it now | 'lost': the line is gone, or another's
local r = load(KEYS)
if not r then return 'lost' end
local line, repeated = held_line(KEYS, ARGV[1], ARGV[2])
if not line then return repeated and 'done' or 'lost' end
local delivered = math.max(line.delivered, math.min(tonumber(ARGV[3]), r.version))
if delivered > line.delivered then
  change_line(KEYS, ARGV[1], 'delivered', micros(delivered))
  if ARGV[5] == '1' then count(r, 'delivered') end
end
if (ARGV[5] == '1' or delivered >= r.version) and line.first_failed_at then
  change_line(KEYS, ARGV[1], 'failures', false, 'first_failed_at', false, 'said', false, 'said_at', false)
end
due_in(KEYS, r, ARGV[1], delivered, tonumber(ARGV[4]))
if delivered < r.version then return 'more' end
change_line(KEYS, ARGV[1], 'token', false, 'settled', ARGV[2])
return 'done'
