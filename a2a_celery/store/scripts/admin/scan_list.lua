-- scan_list: a page of a list of runs, pauses or dead letters, with what the records of their tasks say; nothing changes.
-- KEYS  [1] the list
-- ARGV  [1] key prefix  [2] cursor, '0' to begin  [3] about how many  [4] '1' if it lists runs, else tags of tasks
-- returns {next cursor ('0': that was all), µs now, a row for each: what operator_row gives}; some may come twice,
--       those whose task or run is gone don't come
-- requires: keys, operator_rows, time
local page = redis.call('ZSCAN', KEYS[1], ARGV[2], 'COUNT', ARGV[3])
local answer = {page[1], micros(now())}
for i = 1, #page[2], 2 do
  local name, run = page[2][i], nil
  if ARGV[4] == '1' then
    local task_id
    task_id, run = string.match(name, '^(.*)%.(%d+)$')
    name = quoted(task_id)
  end
  local row = operator_row(keys_of(ARGV[1], name)[1], page[2][i + 1])
  if row and (run == nil or run == row[3]) then answer[#answer + 1] = row end
end
return answer
