-- read_recorded: return a part of the journal of a task, with the beginnings of its contents.
-- returns {number of entries in the journal, {key, header or entry without its blob, size of the content in bytes ('' for
--       a blob), beginning of the content, …}}
-- requires: blobs

local entries, bytes, cursor = {}, 0, '0'
repeat
  local page = redis.call('HSCAN', keys.journal, cursor, 'COUNT', 10)
  cursor = page[1]
  for i = 1, #page[2], 2 do
    local key, entry = page[2][i], page[2][i + 1]
    bytes = bytes + #entry
    local line_end = string.find(entry, '\n', 1, true)
    if blob_folder(entry) then
      for _, value in ipairs({key, entry, '', ''}) do entries[#entries + 1] = value end
    elseif line_end then
      local content = string.sub(entry, line_end + 1, line_end + max_content)
      for _, value in ipairs({key, string.sub(entry, 1, line_end), #entry - line_end, content}) do
        entries[#entries + 1] = value
      end
    end
  end
until cursor == '0' or #entries >= 4 * MAX_RECORDED or bytes >= JOURNAL_PAGE_BYTES
return {redis.call('HLEN', keys.journal), entries}
