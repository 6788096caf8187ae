-- post_reminders: repeat the questions whose reminders are due, as status events. Each reminder is posted once. If
-- several reminders of a task are due, the task stays in the list after the first reminder. INPUT_REQUIRED →
-- INPUT_REQUIRED
-- returns the number of due reminders that this call has processed
-- requires: configs, full_store, keys, log, notifications, pauses, states, status, tasks, time

local function post_reminder(keys, r, due)
  local reminders, escalation = unpack(cmsgpack.unpack(r.reminders))
  local reminder = table.remove(reminders, 1)
  if escalation and not reminders[1] and not refuse_config(keys, escalation) then
    save_config(keys, r, escalation, r.version)
  end
  local at, bytes = next_timestamp(r), r.status .. reminder.event
  append_entry(keys, r, at, bytes)
  set_status(keys, r, r.state, '1', bytes, at)
  merge_metadata(keys, reminder.metadata)
  if reminders[1] then
    local next_due = due + reminders[1].after_us - reminder.after_us
    keep_until_resumed(keys, r, 'reminders', cmsgpack.pack({reminders, escalation}), next_due)
  else
    drop_pause_data(keys, r, 'reminders', true)
  end
  save_record(keys, r)
  notify(keys, r)
end

local due = redis.call('ZRANGEBYSCORE', index, '-inf', micros(now()), 'WITHSCORES', 'LIMIT', 0, limit)
if #due > 0 then refuse_on_full_store(index) end
for i = 1, #due, 2 do
  local tag = due[i]
  local keys = keys_of(prefix, tag)
  local r = load_record(keys)
  if r and r.reminders and r.phase == '' and INTERRUPTED[r.state] then
    post_reminder(keys, r, tonumber(due[i + 1]))
  else
    redis.call('ZREM', index, tag)
  end
end
return #due / 2
