-- requires: stored_bytes, tasks

-- An ended task never changes. The script that ends a task of moderate size packs the task: log and activities become one
-- string under the key of the log. The string begins with the status, so that a list of tasks reads no other part of
-- it. The last entry lacks its event, which is the status. History, artifacts and status are deleted, because they can
-- be derived from the log. The record is rewritten without the fields in OMITTED, because Redis encodes a hash that once
-- had a large field as a hash table, which takes three times the memory.

local PACKED_ENTRIES = 1000
local STORED_BYTES = 262144 -- maximum bytes of a task that is packed
local PACKED_BYTES = 131072 -- maximum bytes of the string
-- In contents of more bytes, the ids take a small part, and the search for ids takes long.
local SPLIT_BYTES, SPLIT_BYTES_PER_ENTRY = 4096, 256

-- Fields that are not copied: fields that `save_record` writes afterwards unless they have default values, and fields
-- about the publication of an open run.
local OMITTED = {status = true, recorded_at = true, seq = true, turn = true, attempt = true, has_message = true, phase = true,
  token = true, runner = true, cancel_requested = true, nonce = true, published_at = true, prefetched = true,
  unreported_since = true}

-- Return the index of the event in a log entry.
local function start_of_event(entry) return string.find(entry, ' ', 1, true) + 1 end

-- Return true if an entry refers to blobs.
local function has_blobs(entry) return string.byte(entry, start_of_event(entry)) == 0 end

-- Rewrite the record of a packed task, and delete the other keys of the task. `artifacts` are the ids of its artifacts.
local function rewrite_record(keys, r, artifacts)
  local fields, kept = redis.call('HGETALL', keys.record), {}
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    if not OMITTED[field] and value ~= DEFAULTS[field] then kept[#kept + 1], kept[#kept + 2] = field, value end
  end
  for i, artifact_id in ipairs(artifacts) do artifacts[i] = keys.chunks .. artifact_id end
  redis.call('DEL', keys.record, keys.log, keys.history, keys.artifacts, keys.execution, unpack(artifacts))
  redis.call('HSET', keys.record, unpack(kept))
end

-- Return the ids that most entries contain.
local function frequent_ids(r, artifact_id) return {r.task_id, r.context, artifact_id} end

-- Return the parts of `text` between the occurrences of `id`.
local function split(text, id)
  if id == '' then return {text} end
  local parts, position = {}, 1
  local first, last = string.find(text, id, 1, true)
  while first do
    parts[#parts + 1] = string.sub(text, position, first - 1)
    position = last + 1
    first, last = string.find(text, id, position, true)
  end
  parts[#parts + 1] = string.sub(text, position)
  return parts
end

-- Return the string of a packed task: its status and the id of its first artifact ('' for none), each preceded by its
-- length, then entries and activities. If these are short, their text is split at each of the frequent ids.
local function pack_contents(r, entries, activities, artifact_id)
  local last = entries[r.version]
  entries[r.version] = string.sub(last, 1, #last - #r.status)
  local contents = cmsgpack.pack({entries, activities})
  entries[r.version] = last
  if #contents <= SPLIT_BYTES + SPLIT_BYTES_PER_ENTRY * r.version then
    for _, id in ipairs(frequent_ids(r, artifact_id)) do contents = cmsgpack.pack(split(contents, id)) end
  end
  return struct.pack('>I4c0I4c0', #r.status, r.status, #artifact_id, artifact_id) .. contents
end

-- Pack an ended task if it is small and its last log entry is its status. The caller must save the record.
local function pack_task(keys, r)
  if r.blobs or r.version > PACKED_ENTRIES or (r.size or 0) > STORED_BYTES then return end
  local entries, activities = redis.call('LRANGE', keys.log, 0, -1), redis.call('LRANGE', keys.execution, 0, -1)
  local last = entries[r.version]
  if #entries ~= r.version or string.sub(last, start_of_event(last)) ~= r.status then return end
  for _, entry in ipairs(entries) do
    if has_blobs(entry) then return end
  end
  local artifacts = redis.call('LRANGE', keys.artifacts, 0, -1)
  local value = pack_contents(r, entries, activities, artifacts[1] or '')
  if #value > PACKED_BYTES then return end
  add_size(r, #value - (r.size or 0))
  rewrite_record(keys, r, artifacts)
  redis.call('SET', keys.log, value)
  r.packed, r.entries = '1', entries
end

-- Return the status event of a packed task.
local function unpack_status(keys)
  local length = struct.unpack('>I4', redis.call('GETRANGE', keys.log, 0, 3))
  return redis.call('GETRANGE', keys.log, 4, 3 + length)
end

-- Return the log entries and the activities of a packed task. `r` must have task_id and context, and receives the contents,
-- so that a script unpacks them once.
local function unpack_task(keys, r)
  if not r.contents then
    local value = redis.call('GET', keys.log)
    local status, artifact_id, first = struct.unpack('>I4c0I4c0', value)
    local ids, contents = frequent_ids(r, artifact_id), cmsgpack.unpack(string.sub(value, first))
    while type(contents[1]) == 'string' do contents = cmsgpack.unpack(table.concat(contents, table.remove(ids))) end
    local entries = contents[1]
    entries[#entries] = entries[#entries] .. status
    r.contents = contents
  end
  return unpack(r.contents)
end
