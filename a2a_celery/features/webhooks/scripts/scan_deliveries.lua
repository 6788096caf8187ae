-- scan_deliveries: return a page of the deliveries with undelivered events, or of the deliveries that were given up.
-- returns {next cursor ('0' after the last page), current time in µs, delivery_summary of each cursor}. A cursor may
--       appear twice. Missing cursors are omitted.
-- requires: deliveries, keys, tasks, time

local page = redis.call('ZSCAN', cursors, cursor, 'COUNT', PAGE)
local reply = {page[1], micros(now())}
for i = 1, #page[2], 2 do
  local tag, config = string.match(page[2][i], '^(%S+) (%S+)$')
  local keys = keys_of(prefix, tag)
  local r = load_record(keys)
  local cursor = r and load_delivery(keys, config)
  if cursor then reply[#reply + 1] = delivery_summary(r, config, cursor, not dead and page[2][i + 1] or '') end
end
return reply
