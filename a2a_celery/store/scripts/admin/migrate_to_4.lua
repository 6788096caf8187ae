-- migrate_to_4: convert packed tasks in which unused bytes, the marks, represent frequent texts. Rename the field
-- schedule_index to joined_indexes. Convert the data of open questions. Handles one page of the keyspace. Repeat the call
-- until the cursor is 0.
-- returns {next cursor, number of changed tasks}
-- requires: keys, packed, stored_bytes, tasks, time

local page = redis.call('SCAN', cursor, 'MATCH', '*:{*}:task', 'COUNT', count)
local changed = 0
local NO_MARKS = '\0\0\0\0\0\0'

-- Return the six marks of a packed task, or nil if the task has no marks.
local function marks_of(value)
  local marks = string.sub(value, 1, 6)
  return (marks == NO_MARKS or string.byte(marks) >= 128) and marks or nil
end

-- Return the log entries, the steps and the id of the first artifact of a packed task with marks. Set the status of `r`.
local function read_marked(r, value, marks)
  local id_length, runner_length, status_length, first = string.match(value, '^(%d+) (%d+) (%d+) ()', 7)
  local first_of_runner = first + id_length
  local first_of_status = first_of_runner + runner_length
  local rest = first_of_status + status_length
  local artifact_id = string.sub(value, first, first_of_runner - 1)
  local texts = {r.task_id, r.context, artifact_id, string.sub(value, first_of_runner, first_of_status - 1),
    string.sub(micros(r.at), 1, 8), '"INITIALIZING"'}
  local function without_marks(text)
    for i = marks == NO_MARKS and 0 or #texts, 1, -1 do
      text = table.concat(split(text, string.sub(marks, i, i)), texts[i])
    end
    return text
  end
  r.status = without_marks(string.sub(value, first_of_status, rest - 1))
  local entries, steps = unpack(cmsgpack.unpack(without_marks(string.sub(value, rest))))
  entries[r.version] = entries[r.version] .. r.status
  return entries, steps, artifact_id
end

-- Return the reminders that were not posted yet. `packed` is a sequence of strings, each preceded by its length: the µs of
-- all reminders, the event and the metadata of each reminder, and the fields of ConfigSection if there is an escalation.
local function unposted_reminders(packed, posted_count)
  local texts, position = {}, 1
  while position <= #packed do
    texts[#texts + 1], position = struct.unpack('>I4c0', packed, position)
  end
  local reminders, count = {}, 0
  for us in string.gmatch(texts[1], '%d+') do
    count = count + 1
    if count > posted_count then
      reminders[#reminders + 1] = {after_us = tonumber(us), event = texts[2 * count], metadata = texts[2 * count + 1]}
    end
  end
  if not texts[2 * count + 2] then return cmsgpack.pack({reminders}) end
  local id, sealed, fingerprint, sealed_with, secrets, deliveries, dead_deliveries, max_configs, listed =
    unpack(texts, 2 * count + 2)
  return cmsgpack.pack({reminders, {id = id, sealed = sealed, fingerprint = fingerprint, sealed_with = sealed_with,
    secrets = secrets, deliveries = deliveries, dead_deliveries = dead_deliveries, max_configs = max_configs, listed = listed}})
end

local function convert_question(keys, r)
  local fields, growth = '', 0
  if r.answer_schema then fields, growth = 'answer_schema ', #r.answer_schema end
  if r.posted_reminders then
    local reminders = unposted_reminders(r.reminders, tonumber(r.posted_reminders))
    fields, growth = fields .. 'reminders@ ', growth + #reminders - #r.reminders
    redis.call('HSET', keys.record, 'reminders', reminders)
    redis.call('HDEL', keys.record, 'posted_reminders')
  end
  add_size(r, growth)
  count_growth(r)
  redis.call('HSET', keys.record, 'pause_data', fields, 'size', micros(r.size))
end

for _, record in ipairs(page[2]) do
  local keys = string.sub(record, 1, #prefix + 2) == prefix .. ':{' and keys_of(prefix, string.match(record, '{(.-)}'))
  local r = keys and load_record(keys)
  local value = r and r.packed and redis.call('GET', keys.log)
  local marks = value and marks_of(value)
  local is_readable, entries, steps, artifact_id
  if marks then is_readable, entries, steps, artifact_id = pcall(read_marked, r, value, marks) end
  local index = r and r.schedule_index
  local has_question = r and (r.posted_reminders or r.answer_schema and not r.pause_data)
  if is_readable or index or has_question then changed = changed + 1 end
  if not is_dry_run then
    if index then
      redis.call('HSET', record, 'joined_indexes', index)
      redis.call('HDEL', record, 'schedule_index')
    end
    if has_question then convert_question(keys, r) end
    if is_readable then
      local packed = pack_contents(r, entries, steps, artifact_id)
      redis.call('SET', keys.log, packed, 'KEEPTTL')
      free_bytes(keys, r, #value - #packed)
    end
  end
end
return {page[1], changed}
