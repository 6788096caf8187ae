-- read_journal: return a page of the journal of a claimed run. The cursor is 0 in the first call and in the reply with
-- the last page. A page may repeat entries of earlier pages.
-- returns {'page', next cursor, {key, entry, …}} | {'lost'}
-- requires: tasks

local r = load_record(keys)
if not r or r.run ~= run or r.token ~= token or r.phase ~= 'running' then return {'lost'} end
local entries, bytes = {}, 0
repeat
  local page = redis.call('HSCAN', keys.journal, cursor, 'COUNT', 10)
  cursor = page[1]
  for _, value in ipairs(page[2]) do
    entries[#entries + 1] = value
    bytes = bytes + #value
  end
until cursor == '0' or bytes >= JOURNAL_PAGE_BYTES
return {'page', cursor, entries}
