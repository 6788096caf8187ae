-- post_reminders: repeat the questions whose reminders are due, as status events. Each reminder is posted once. If
-- several reminders of a task are due, the task stays in the list after the first reminder. INPUT_REQUIRED →
-- INPUT_REQUIRED
-- KEYS  reminders
-- ARGV  key prefix, maximum number of reminders, upper bound for the current time in µs ('' for none)
-- returns the number of due reminders that this call has processed
-- requires: configs, full_store, keys, log, notifications, reminders, states, status, tasks, time
local list = KEYS[1]
local prefix, limit, latest = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])

-- Add the webhook that receives the last reminder and all later events, if there is one. save_config reads ARGV.
local function escalate(keys, r, texts, first)
  if not texts[first] then return end
  local first_argument = #ARGV + 1
  for i = first, #texts do ARGV[first_argument + i - first] = texts[i] end
  save_config(keys, r, first_argument, r.version)
  for i = #ARGV, first_argument, -1 do ARGV[i] = nil end
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
    redis.call('HSET', keys[1], 'posted_reminders', micros(number))
    redis.call('ZADD', list, micros(due + times[number + 1] - times[number]), task_tag(keys))
  else
    cancel_reminders(keys, r)
  end
  save_record(keys, r)
  notify(keys, r)
end

local at = math.min(now(), latest or math.huge)
local due = redis.call('ZRANGEBYSCORE', list, '-inf', micros(at), 'WITHSCORES', 'LIMIT', 0, limit)
if #due > 0 then refuse_on_full_store(list) end
for i = 1, #due, 2 do
  local tag = due[i]
  local keys = keys_of(prefix, tag)
  local r = load_record(keys)
  if r and r.reminders and r.phase == '' and INTERRUPTED[r.state] then
    post_reminder(keys, r, tonumber(due[i + 1]))
  else
    redis.call('ZREM', list, tag)
  end
end
return #due / 2
