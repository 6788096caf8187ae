-- scan_deliveries: a page of a list of lines, due or dead; nothing changes.
-- KEYS  [1] the list
-- ARGV  [1] key prefix  [2] cursor, '0' to begin  [3] about how many  [4] '1' if its scores say when a line is due
-- returns {next cursor ('0': that was all), µs now, a row for each}; some may come twice, those that are gone don't come
-- requires: deliveries, delivery_rows, keys, tasks, time
local page = redis.call('ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local answer = {page[1], micros(now())}
for i = 1, #page[2], 2 do
  local task, config = string.match(page[2][i], '^(%S+) (%S+)$')
  local keys = keys_of(ARGV[1], task)
  local r = load_record(keys)
  local line = r and load_delivery(keys, config)
  if line then answer[#answer + 1] = delivery_row(r, config, line, ARGV[4] == '1' and page[2][i + 1] or '') end
end
return answer
