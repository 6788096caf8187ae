-- post_reminders: repeat the questions whose reminders are due, as status events. Each reminder is posted once. If
-- several reminders of a task are due, the task stays in the list after the first reminder. INPUT_REQUIRED →
-- INPUT_REQUIRED
-- returns the number of due reminders that this call has processed
-- requires: configs, full_store, keys, log, notifications, reminders, states, status, tasks, time
-- Add the webhook that receives the last reminder and all later events, if there is one.

local function escalate(keys, r, texts, first)
  if not texts[first] then return end
  local id, sealed, fingerprint, sealed_with, secrets, deliveries, dead_deliveries, max_configs, listed = unpack(texts, first)
  save_config(keys, r, {id = id, sealed = sealed, fingerprint = fingerprint, sealed_with = sealed_with, secrets = secrets,
    deliveries = deliveries, dead_deliveries = dead_deliveries, max_configs = max_configs, listed = listed}, r.version)
end

local function post_reminder(keys, r, due)
  local texts, times = unpack_reminders(r.reminders)
  local number = tonumber(r.posted_reminders) + 1
  if not times[number + 1] then escalate(keys, r, texts, 2 * #times + 2) end
  local at, bytes = next_timestamp(r), r.status .. texts[2 * number]
  append_entry(keys, r, at, bytes)
  set_status(keys, r, r.state, '1', bytes, at)
  merge_metadata(keys, texts[2 * number + 1])
  if times[number + 1] then
    redis.call('HSET', keys.record, 'posted_reminders', micros(number))
    redis.call('ZADD', reminders, micros(due + times[number + 1] - times[number]), task_tag(keys))
  else
    cancel_reminders(keys, r)
  end
  save_record(keys, r)
  notify(keys, r)
end

local due = redis.call('ZRANGEBYSCORE', reminders, '-inf', micros(now()), 'WITHSCORES', 'LIMIT', 0, limit)
if #due > 0 then refuse_on_full_store(reminders) end
for i = 1, #due, 2 do
  local tag = due[i]
  local keys = keys_of(prefix, tag)
  local r = load_record(keys)
  if r and r.reminders and r.phase == '' and INTERRUPTED[r.state] then
    post_reminder(keys, r, tonumber(due[i + 1]))
  else
    redis.call('ZREM', reminders, tag)
  end
end
return #due / 2
