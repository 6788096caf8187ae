-- requires: keys, time

-- A blob is a large part of a message. A stored message with blobs begins with a zero byte, the length of a table in
-- four bytes (big-endian), and the table, which has the names of the blobs; see store/blobs/references.py.
--
-- Redis stores the blob <name> as the string <stem>:blob:<name>, and the sizes of all blobs of the task by name in the
-- hash <stem>:blobs. A caller sets the string <stem>:blob:<name>:staged for each new blob, passes these keys as the last of
-- KEYS, and deletes them after the script, in one transaction. A script that writes the message adopts the blobs. The
-- content of a blob never enters Lua, which hashes each byte of a string.

local function blobs_key(leases) return (string.gsub(leases, 'leases$', 'blobs')) end

local function stored_blob(keys, name) return (string.gsub(keys[1], 'task$', 'blob:')) .. name end

local function stored_blobs(keys) return (string.gsub(keys[1], 'task$', 'blobs')) end

-- Return the staged blobs of the call, as a table that maps the name of each blob to its staged key.
local function staged_blobs()
  local staged = {}
  for i = #KEYS, 1, -1 do
    local name = string.match(KEYS[i], '^.*}:blob:(.*):staged$')
    if not name then break end
    staged[name] = KEYS[i]
  end
  return staged
end

-- Return the total bytes of the staged blobs.
local function staged_bytes()
  local bytes = 0
  for _, key in pairs(staged_blobs()) do bytes = bytes + redis.call('STRLEN', key) end
  return bytes
end

-- Adopt the staged blobs as the task's blobs. `r` is the record. Return the bytes of the blobs that the task did not
-- have, which the caller adds to the size of the task.
local function adopt_blobs(keys, r)
  local bytes, staged = 0, staged_blobs()
  if not next(staged) then return bytes end
  for name, key in pairs(staged) do
    local size = redis.call('STRLEN', key)
    if redis.call('HSETNX', stored_blobs(keys), name, size) == 1 then bytes = bytes + size end
    redis.call('RENAME', key, stored_blob(keys, name))
  end
  r.blobs = '1'
  redis.call('HSET', keys[1], 'blobs', r.blobs)
  return bytes
end

-- Call EXPIRE or PERSIST for the blobs of an ended task.
local function change_expiry_of_blobs(keys, command, ...)
  redis.call(command, stored_blobs(keys), ...)
  for _, name in ipairs(redis.call('HKEYS', stored_blobs(keys))) do redis.call(command, stored_blob(keys, name), ...) end
end

-- Delete the blobs of the task whose names begin with `prefix` ('' for all blobs). Return their total bytes.
local function delete_blobs(keys, prefix)
  local bytes, blobs = 0, redis.call('HGETALL', stored_blobs(keys))
  for i = 1, #blobs, 2 do
    local name = blobs[i]
    if string.sub(name, 1, #prefix) == prefix then
      bytes = bytes + tonumber(blobs[i + 1])
      redis.call('DEL', stored_blob(keys, name))
      redis.call('HDEL', stored_blobs(keys), name)
    end
  end
  return bytes
end

-- Return true if `bytes`, an event or journal entry of a new task, refers to blobs in the object store that may have
-- been removed. See store/blobs.
local function lacks_blobs(keys, leases, bytes)
  if string.byte(bytes) ~= 0 or next(staged_blobs()) then return false end
  return redis.call('EXISTS', keys[1]) == 0 and not redis.call('ZSCORE', blobs_key(leases), task_tag(keys))
end

-- Return the blob folder of a journal entry whose content is a blob, or nil for any other entry.
local function blob_folder(entry) return string.match(entry, '^%z....%[%[0,"([^/]+)/') end

-- Delete the blobs of a deleted journal, and make a watcher remove them from the object store. Return the bytes of the
-- blobs that Redis stored.
local function remove_journal_blobs(keys, leases, folder)
  if redis.call('ZSCORE', blobs_key(leases), task_tag(keys)) then
    redis.call('ZADD', blobs_key(leases) .. ':orphaned', micros(now()), task_tag(keys) .. '/' .. folder)
  end
  return delete_blobs(keys, folder .. '/')
end
