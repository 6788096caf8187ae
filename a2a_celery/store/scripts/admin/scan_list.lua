-- scan_list: return a page of a list of runs or tasks, with a summary of each task.
-- returns {next cursor ('0' after the last page), current time in µs, task_summary of each member}. A member may appear
--       twice. Members whose task or run is missing are omitted.
-- requires: keys, task_summary, time

local page = redis.call('ZSCAN', name, cursor, 'COUNT', size)
local reply = {page[1], micros(now())}
for i = 1, #page[2], 2 do
  local tag, run = page[2][i], nil
  if name == leases or name == dispatch or name == blocked or name == canvases or name == suspended then -- a list of runs
    local task_id
    task_id, run = string.match(tag, '^(.*)%.(%d+)$')
    tag = quoted(task_id)
  end
  local summary = task_summary(keys_of(prefix, tag), page[2][i + 1])
  if summary and (run == nil or run == summary[3]) then reply[#reply + 1] = summary end
end
return reply
