-- requires: stored_bytes, tasks, time

-- An ended task never changes. The script that ends a task of moderate size packs the task: log and steps become one
-- string under the key of the log, in which six unused bytes, the marks, represent texts that occur often. The string
-- begins with the marks, the lengths of artifact id, runner and status, the artifact id, the runner and the status, so
-- that a list of tasks reads no other part of it. The last entry lacks its event, which is the status. History,
-- artifacts and status are deleted, because they can be derived from the log. The record is rewritten without the
-- fields in OMITTED, because Redis encodes a hash that once had a large field as a hash table, which takes three times
-- the memory.

local PACKED_ENTRIES = 1000
local STORED_BYTES = 262144 -- maximum bytes of a task that is packed
local PACKED_BYTES = 131072 -- maximum bytes of the string
-- In a text of more bytes, the marked texts take a small part, and replacing them takes long.
local MARKED_BYTES, MARKED_BYTES_PER_ENTRY = 4096, 256
local FEW_ENTRIES = 16 -- in fewer entries, an artifact id is too rare to be replaced
local NO_MARKS = '\0\0\0\0\0\0' -- no text is replaced
local TIME_DIGITS = 8 -- leading digits that most times of a short task have in common
local HEAD_BYTES = 1024 -- most statuses end within these bytes

-- Fields that are not copied: fields that `load_record` derives, fields that `save_record` writes afterwards unless they
-- have default values, and fields about the publication of an open run.
local OMITTED = {status = true, scope_index = true, context_index = true, leases = true, dispatch = true,
  recorded_at = true, has_message = true, phase = true, runner = true, cancel_requested = true, nonce = true,
  published_at = true, prefetched = true}

-- Return bytes that do not occur in `text`, or NO_MARKS if there are no such bytes. The bytes that are tried
-- first never occur in valid UTF-8.
local function marks_for(text)
  local marks = ''
  for code = 255, 128, -1 do
    local byte = string.char(code)
    if not string.find(text, byte, 1, true) then marks = marks .. byte end
    if #marks == #NO_MARKS then return marks end
  end
  return NO_MARKS
end

-- Return `text` with `after` in place of each `before`. In a long text, this is faster than string.gsub.
local function replaced(text, before, after)
  local first, last = string.find(text, before, 1, true)
  if before == '' or not first then return text end
  local parts, position = {}, 1
  while first do
    parts[#parts + 1] = string.sub(text, position, first - 1)
    position = last + 1
    first, last = string.find(text, before, position, true)
  end
  parts[#parts + 1] = string.sub(text, position)
  return table.concat(parts, after)
end

-- Return the texts that the marks represent, in the order of the marks. An empty text is not replaced.
local function marked_texts(r, artifact_id, runner)
  return {r.task_id, r.context, artifact_id, runner, string.sub(micros(r.at), 1, TIME_DIGITS), '"INITIALIZING"'}
end

local function with_marks(texts, marks, text)
  if marks == NO_MARKS then return text end
  for i, before in ipairs(texts) do text = replaced(text, before, string.sub(marks, i, i)) end
  return text
end

local function without_marks(texts, marks, text)
  if marks == NO_MARKS then return text end
  for i = #texts, 1, -1 do text = replaced(text, string.sub(marks, i, i), texts[i]) end
  return text
end

-- Return the index of the event in a log entry.
local function start_of_event(entry) return string.find(entry, ' ', 1, true) + 1 end

-- Return true if an entry refers to blobs.
local function has_blobs(entry) return string.byte(entry, start_of_event(entry)) == 0 end

-- Rewrite the record of a packed task, and delete the other keys of the task.
local function rewrite_record(keys, r)
  local fields, kept = redis.call('HGETALL', keys[1]), {}
  for i = 1, #fields, 2 do
    if not OMITTED[fields[i]] then kept[#kept + 1], kept[#kept + 2] = fields[i], fields[i + 1] end
  end
  local artifacts = redis.call('LRANGE', keys[4], 0, -1)
  for i, artifact_id in ipairs(artifacts) do artifacts[i] = keys[5] .. artifact_id end
  redis.call('DEL', keys[1], keys[2], keys[3], keys[4], keys[10], unpack(artifacts))
  redis.call('HSET', keys[1], unpack(without_defaults(r, kept)))
end

-- Pack an ended task if it is small and its last log entry is its status. The caller must save the record.
local function pack_task(keys, r)
  if r.blobs or r.version > PACKED_ENTRIES or (r.size or 0) > STORED_BYTES then return end
  local entries, steps = redis.call('LRANGE', keys[2], 0, -1), redis.call('LRANGE', keys[10], 0, -1)
  local last = entries[r.version]
  if #entries ~= r.version or string.sub(last, start_of_event(last)) ~= r.status then return end
  for _, entry in ipairs(entries) do
    if has_blobs(entry) then return end
  end
  entries[r.version] = string.sub(last, 1, #last - #r.status)
  local packed = cmsgpack.pack({entries, steps})
  entries[r.version] = last
  local is_long = #packed > MARKED_BYTES + MARKED_BYTES_PER_ENTRY * r.version
  local marks = is_long and NO_MARKS or marks_for(packed .. r.status)
  local artifact_id = r.version > FEW_ENTRIES and redis.call('LINDEX', keys[4], 0) or ''
  local runner = #steps > 1 and string.match(steps[1], '^%[%d+,%d+,(".-")') or ''
  local texts = marked_texts(r, artifact_id, runner)
  local status = with_marks(texts, marks, r.status)
  local head = marks .. #artifact_id .. ' ' .. #runner .. ' ' .. #status .. ' ' .. artifact_id .. runner .. status
  local value = head .. with_marks(texts, marks, packed)
  if #value > PACKED_BYTES then return end
  add_size(r, #value - (r.size or 0))
  rewrite_record(keys, r)
  redis.call('SET', keys[2], value)
  r.packed, r.entries = '1', entries
end

-- Return the status event of a packed task, the texts that the marks represent, and the index in the stored string at
-- which entries and steps begin. Without the stored `value`, only the bytes of the status are read. `r` must have
-- task_id, context and at.
local function unpack_status(keys, r, value)
  value = value or redis.call('GETRANGE', keys[2], 0, HEAD_BYTES - 1)
  local id_length, runner_length, status_length, first = string.match(value, '^(%d+) (%d+) (%d+) ()', #NO_MARKS + 1)
  local first_of_runner = first + id_length
  local first_of_status = first_of_runner + runner_length
  local rest = first_of_status + status_length
  if rest - 1 > #value then value = redis.call('GETRANGE', keys[2], 0, rest - 2) end
  local texts = marked_texts(r, string.sub(value, first, first_of_runner - 1),
    string.sub(value, first_of_runner, first_of_status - 1))
  local status = without_marks(texts, string.sub(value, 1, #NO_MARKS), string.sub(value, first_of_status, rest - 1))
  return status, texts, rest
end

-- Return the log entries and the steps of a packed task. `r` must have task_id, context and at, and receives the
-- contents, so that a script unpacks them once.
local function unpack_task(keys, r)
  if not r.contents then
    local value = redis.call('GET', keys[2])
    local status, texts, rest = unpack_status(keys, r, value)
    r.contents = cmsgpack.unpack(without_marks(texts, string.sub(value, 1, #NO_MARKS), string.sub(value, rest)))
    local entries = r.contents[1]
    entries[#entries] = entries[#entries] .. status
  end
  return unpack(r.contents)
end
