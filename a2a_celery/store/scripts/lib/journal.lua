-- requires: blobs, code_versions, stored_bytes

-- The journal of a task is a hash that maps keys to entries; see lifecycle/journal.py. The journal belongs to the
-- current turn and to the earlier turns whose `ask` the current turn answers. Large contents are blobs in one folder.

-- Write an entry, replacing the entry with the same key. An empty entry removes the entry with the same key.
local function write_entry(keys, r, key, entry)
  local growth = #entry - redis.call('HSTRLEN', keys.journal, key)
  if entry == '' then
    growth = growth - redis.call('HDEL', keys.journal, key) * #key
  elseif redis.call('HSET', keys.journal, key, entry) == 1 then growth = growth + #key end
  r.journal_bytes = redis.call('HINCRBY', keys.record, 'journal_bytes', growth)
  add_size(r, growth)
  local folder = blob_folder(entry)
  if folder and folder ~= r.journal_blobs then
    r.journal_blobs = folder
    redis.call('HSET', keys.record, 'journal_blobs', folder)
  end
  if r.claimed_version then set_code_version(keys, r, r.claimed_version) end
end

local function delete_journal(keys, r)
  if r.code_version then set_code_version(keys, r, '') end
  if r.journal_origin then redis.call('HDEL', keys.record, 'journal_origin') end
  if r.journal_bytes then
    redis.call('DEL', keys.journal)
    redis.call('HDEL', keys.record, 'journal_bytes')
    add_size(r, -tonumber(r.journal_bytes))
  end
  if r.journal_blobs then
    redis.call('HDEL', keys.record, 'journal_blobs')
    add_size(r, -remove_journal_blobs(keys, r.journal_blobs))
  end
  r.journal_bytes, r.journal_origin, r.journal_blobs = false, false, false
end

-- Maximum bytes of a journal that a claim returns. A larger journal is read in pages.
local CLAIMED_JOURNAL = 1048576

-- Return alternating keys and entries, or nil if the journal is too large for one reply.
local function small_journal(keys, r)
  local bytes = tonumber(r.journal_bytes or '0')
  if bytes == 0 then return {} end
  return bytes <= CLAIMED_JOURNAL and redis.call('HGETALL', keys.journal) or nil
end

-- Return alternating keys and entries of the entries whose contents are blobs.
local function entries_with_blobs(keys, r)
  local entries = {}
  if not r.journal_blobs then return entries end
  local journal = redis.call('HGETALL', keys.journal)
  for i = 1, #journal, 2 do
    if blob_folder(journal[i + 1]) then
      entries[#entries + 1], entries[#entries + 2] = journal[i], journal[i + 1]
    end
  end
  return entries
end
