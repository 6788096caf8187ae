-- list_waiting: return a page of the live tasks in several indexes, oldest status first, equal times by ascending id.
-- returns {number of tasks in each index, separated by spaces; '1' if another page follows; position of the index of
--       each task among the indexes, separated by spaces; snapshots with the newest message of the history …}
-- requires: keys, snapshot

local cursor_at = cursor and tonumber(cursor.at_us)
local function follows_cursor(at, tag) return not cursor_at or at > cursor_at or (at == cursor_at and tag > cursor.tag) end

local members, counts = {}, {}
for position, index in ipairs(indexes) do
  counts[position] = redis.call('ZCARD', index)
  local offset, count, batch = 0, 0, {}
  repeat
    batch = redis.call('ZRANGEBYSCORE', index, cursor and cursor.at_us or '-inf', '+inf', 'WITHSCORES', 'LIMIT', offset, page_size + 1)
    for i = 1, #batch, 2 do
      local at = tonumber(batch[i + 1])
      if follows_cursor(at, batch[i]) then
        members[#members + 1], count = {at, batch[i], position}, count + 1
      end
    end
    offset = offset + page_size + 1
  until count > page_size or #batch < 2 * (page_size + 1)
end
table.sort(members, function(a, b) return a[1] < b[1] or (a[1] == b[1] and a[2] < b[2]) end)

local snapshots, positions, bytes, more = {}, {}, 0, #members > page_size
for i = 1, math.min(page_size, #members) do
  local keys = keys_of(prefix, members[i][2])
  local r = load_summary(keys)
  if r then
    bytes = bytes + r.size
    if bytes > MAX_BYTES and #snapshots > 0 then
      more = true
      break
    end
    snapshots[#snapshots + 1], positions[#positions + 1] = snapshot(keys, r, 1, false), members[i][3]
  end
end
return {table.concat(counts, ' '), more and '1' or '0', table.concat(positions, ' '), unpack(snapshots)}
