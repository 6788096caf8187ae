-- requires: keys, time

-- A blob is a large part of a message. A stored message with blobs begins with a zero byte, the length of a table in
-- four bytes (big-endian), and the table, which has the names of the blobs; see store/blobs/references.py.
--
-- Redis stores the blob <name> as the string <stem>:blob:<name>, and the sizes of all blobs of the task by name in the
-- hash <stem>:blobs. The content of a blob never enters Lua, which hashes each byte of a string. A caller sets the
-- string of each new blob, with an expiry, before the script, and passes the keys as the last of KEYS. If a blob is in
-- an object store, the last of KEYS is the sorted set of the tasks with such blobs, which no script with blobs uses by
-- its own signature.
--
-- A script that writes messages calls `missing_blobs` first. If the script then writes the message, it calls
-- `keep_blobs`. Otherwise, the new blobs expire soon after the script.

local REFUSED_EXPIRY = 1 -- seconds after which a new blob expires if the script does not keep it

local function stored_blob(keys, name) return (string.gsub(keys.record, 'task$', 'blob:')) .. name end

local function stored_blobs(keys) return (string.gsub(keys.record, 'task$', 'blobs')) end

-- Return the keys of the call's blobs in Redis, as a table that maps names to keys.
local function new_blobs()
  local blobs = {}
  for i = #KEYS, 1, -1 do
    local name = string.match(KEYS[i], '^.*}:blob:(.*)$')
    if not name then break end
    blobs[name] = KEYS[i]
  end
  return blobs
end

-- Return an error if a blob of the call does not exist, or may have been removed from the object store. Otherwise,
-- return nil, and let the blobs that the task does not have expire unless `keep_blobs` follows. This write also lets the
-- script run at the memory limit of Redis, which has accepted the blobs.
local function missing_blobs(keys)
  local missing = string.find(KEYS[#KEYS], '^[^{]*:blobs$') and not redis.call('ZSCORE', KEYS[#KEYS], task_tag(keys))
  local blobs = new_blobs()
  for _, key in pairs(blobs) do missing = missing or redis.call('EXISTS', key) == 0 end
  if missing then return redis.error_reply('BLOBMISSING the blobs of the message were removed before it was stored') end
  for name, key in pairs(blobs) do
    if redis.call('HEXISTS', stored_blobs(keys), name) == 0 then redis.call('EXPIRE', key, REFUSED_EXPIRY) end
  end
end

-- Return the total bytes of the call's blobs in Redis.
local function new_blob_bytes()
  local bytes = 0
  for _, key in pairs(new_blobs()) do bytes = bytes + redis.call('STRLEN', key) end
  return bytes
end

-- Make the call's blobs permanent. `r` is the record. Return the bytes of the blobs in Redis that the task did not
-- have, which the caller adds to the size of the task.
local function keep_blobs(keys, r)
  local bytes, blobs = 0, new_blobs()
  if not next(blobs) then return bytes end
  for name, key in pairs(blobs) do
    local size = redis.call('STRLEN', key)
    if redis.call('HSETNX', stored_blobs(keys), name, size) == 1 then bytes = bytes + size end
    redis.call('PERSIST', key)
  end
  r.blobs = '1'
  redis.call('HSET', keys.record, 'blobs', r.blobs)
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

-- Return the blob folder of a journal entry whose content is a blob, or nil for any other entry.
local function blob_folder(entry) return string.match(entry, '^%z....%[%[0,"([^/]+)/') end

-- Delete the blobs of a deleted journal, and make a watcher remove them from the object store. Return the bytes of the
-- blobs that Redis stored.
local function remove_journal_blobs(keys, folder)
  local tasks = prefix_of(keys) .. ':blobs'
  if redis.call('ZSCORE', tasks, task_tag(keys)) then
    redis.call('ZADD', tasks .. ':orphaned', micros(now()), task_tag(keys) .. '/' .. folder)
  end
  return delete_blobs(keys, folder .. '/')
end
