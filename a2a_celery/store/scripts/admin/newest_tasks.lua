-- newest_tasks: return the tasks of several indexes with the newest status, newest first, equal times by descending id.
-- returns {'0', current time in µs, task_summary of each task}, without tasks whose record is missing
-- requires: keys, task_summary, time

-- Number of members that are read from an index at once. Most tasks of a page may be in one index, or in different ones.
local BATCH = math.max(5, math.ceil(2 * limit / #indexes))

local oldest = not_before_us and micros(not_before_us) or '-inf'
local cursor_at = cursor and tonumber(cursor.at_us) or math.huge
local newest_us = math.min(not_after_us or math.huge, cursor_at)
local newest = newest_us < math.huge and micros(newest_us) or '+inf'

local function follows_cursor(at, tag)
  return not cursor or at < cursor_at or (at == cursor_at and tag < cursor.tag)
end

-- Set `list.tag`, `list.score` and `list.at` to the next member of the index after the cursor, or to nil at its end.
local function advance(list)
  repeat
    if list.next > #list.batch then
      list.batch = redis.call('ZREVRANGEBYSCORE', list.index, newest, oldest, 'WITHSCORES', 'LIMIT', list.offset, BATCH)
      list.offset, list.next = list.offset + BATCH, 1
    end
    list.tag, list.score = list.batch[list.next], list.batch[list.next + 1]
    list.at, list.next = tonumber(list.score), list.next + 2
  until not list.tag or follows_cursor(list.at, list.tag)
end

local lists = {}
for i, index in ipairs(indexes) do
  lists[i] = {index = index, batch = {}, offset = 0, next = 1}
  advance(lists[i])
end

local reply = {'0', micros(now())}
while #reply < limit + 2 do
  local first
  for _, list in ipairs(lists) do
    if list.tag and (not first or list.at > first.at or (list.at == first.at and list.tag > first.tag)) then first = list end
  end
  if not first then break end
  reply[#reply + 1] = task_summary(keys_of(prefix, first.tag), first.score) or nil
  advance(first)
end
return reply
