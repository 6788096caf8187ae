-- requires: stored_bytes, time

-- An ended task never changes, and most ended tasks are small. The script that ends a small task packs the task: log
-- and steps become one string under the key of the log, in which two unused bytes represent the ids of task and
-- context. The string begins with these bytes, the length of the status and the status, so that a list of tasks reads
-- no other part of it. The last entry lacks its event, which is the status. History, artifacts and status are deleted,
-- because they can be derived from the log. The record is rewritten without the fields in OMITTED, because Redis
-- encodes a hash that once had a large field as a hash table, which takes three times the memory.

local PACKED_ENTRIES = 16
local PACKED_BYTES = 131072
local MARKED_BYTES = 4096 -- in a longer string, the ids take a small part, and replacing them takes long
local NO_MARKS = '\0\0' -- the ids are not replaced
local HEAD_BYTES = 1024 -- most statuses end within these bytes

-- Fields that are not copied: fields that `load_record` derives, the size, which changes, and fields about the
-- publication of an open run.
local OMITTED = {status = true, size = true, scope_index = true, context_index = true, leases = true, dispatch = true,
  published_at = true, prefetched = true}

-- Return two bytes that do not occur in `text` and have no special meaning in patterns, or NO_MARKS if `text` is long or
-- has no such bytes. The bytes that are tried first never occur in valid UTF-8.
local function marks_for(text)
  if #text > MARKED_BYTES then return NO_MARKS end
  local marks = ''
  for code = 255, 128, -1 do
    local byte = string.char(code)
    if not string.find(text, byte, 1, true) then marks = marks .. byte end
    if #marks == 2 then return marks end
  end
  return NO_MARKS
end

local function replaced(text, id, mark)
  if id == '' then return text end
  return (string.gsub(text, string.gsub(id, '%W', '%%%0'), mark))
end

-- Return the index of the event in a log entry.
local function start_of_event(entry) return string.find(entry, ' ', 1, true) + 1 end

-- Return true if an entry refers to blobs.
local function has_blobs(entry) return string.byte(entry, start_of_event(entry)) == 0 end

-- Rewrite the record of a packed task, and delete the other keys of the task.
local function rewrite_record(keys, r)
  local fields, kept = redis.call('HGETALL', keys[1]), {'packed', '1', 'size', micros(r.size)}
  for i = 1, #fields, 2 do
    if not OMITTED[fields[i]] then kept[#kept + 1], kept[#kept + 2] = fields[i], fields[i + 1] end
  end
  local artifacts = redis.call('LRANGE', keys[4], 0, -1)
  for i, artifact_id in ipairs(artifacts) do artifacts[i] = keys[5] .. artifact_id end
  redis.call('DEL', keys[1], keys[2], keys[3], keys[4], keys[10], unpack(artifacts))
  redis.call('HSET', keys[1], unpack(kept))
end

-- Pack an ended task if it is small and its last log entry is its status. The caller saves the record.
local function pack_task(keys, r)
  if r.blobs or r.version > PACKED_ENTRIES or (r.size or 0) > PACKED_BYTES then return end
  local entries, steps = redis.call('LRANGE', keys[2], 0, -1), redis.call('LRANGE', keys[10], 0, -1)
  local last = entries[r.version]
  if #entries ~= r.version or string.sub(last, start_of_event(last)) ~= r.status then return end
  for _, entry in ipairs(entries) do
    if has_blobs(entry) then return end
  end
  entries[r.version] = string.sub(last, 1, #last - #r.status)
  local packed = cmsgpack.pack({entries, steps})
  entries[r.version] = last
  local status, marks = r.status, marks_for(packed .. r.status)
  if marks ~= NO_MARKS then
    local mark_of_task, mark_of_context = string.sub(marks, 1, 1), string.sub(marks, 2)
    local function without_ids(text) return replaced(replaced(text, r.task_id, mark_of_task), r.context, mark_of_context) end
    status, packed = without_ids(status), without_ids(packed)
  end
  local value = marks .. #status .. ' ' .. status .. packed
  add_size(r, #value - (r.size or 0))
  rewrite_record(keys, r)
  redis.call('SET', keys[2], value)
  r.packed, r.entries = '1', entries
end

local function has_marks(value) return string.sub(value, 1, 2) ~= NO_MARKS end

-- Return `part` of the stored string `value`, with the ids of the task.
local function with_ids(r, value, part)
  if not has_marks(value) then return part end
  local ids = {[string.sub(value, 1, 1)] = r.task_id, [string.sub(value, 2, 2)] = r.context}
  return (string.gsub(part, '[' .. string.sub(value, 1, 2) .. ']', ids))
end

-- Return the status event of a packed task, and the index in the stored string at which entries and steps begin. Without
-- the stored `value`, only the bytes of the status are read. `r` must have task_id and context.
local function unpack_status(keys, r, value)
  value = value or redis.call('GETRANGE', keys[2], 0, HEAD_BYTES - 1)
  local length, first = string.match(value, '^(%d+) ()', 3)
  local rest = first + length
  if rest - 1 > #value then value = redis.call('GETRANGE', keys[2], 0, rest - 2) end
  return with_ids(r, value, string.sub(value, first, rest - 1)), rest
end

-- Return the log entries and the steps of a packed task. `r` must have task_id and context.
local function unpack_task(keys, r)
  local value = redis.call('GET', keys[2])
  local status, rest = unpack_status(keys, r, value)
  local _, pair
  if has_marks(value) then
    pair = cmsgpack.unpack(with_ids(r, value, string.sub(value, rest)))
  else
    _, pair = cmsgpack.unpack_one(value, rest - 1) -- without a copy of a long string
  end
  local entries, steps = unpack(pair)
  entries[#entries] = entries[#entries] .. status
  return entries, steps
end
