-- What every script begins with. A task's keys come first, always in this order:
--   KEYS[1] record  [2] log  [3] history  [4] artifacts  [5] chunks (prefix)  [6] metadata  [7] turns  [8] wake
--   [9] push  [10] execution
-- Keys derived here (chunks .. id, index .. state) come from those or from fields of the record.
--
-- The fields of a record:
--   task_id, scope, scope_index, context_index   whose it is, and where it is listed
--   agent, context, owner               for readers
--   state, at, status, has_message      the current status: number, µs, the event that set it, whether it has a message
--   entered_at                          µs at which the task entered its state; only there if that is before `at`
--   version                             of the newest log entry
--   run, phase, token, runner, seq      the newest run: number; 'queued', 'running', 'handed' (to a canvas) or '' (over);
--                                       its claim's token; its worker process; how many of its events are written
--                                       (for repeated calls)
--   turn, attempt                       the current turn, and which run of it this is
--   max_attempts                        how many runs a turn may have when workers are lost, and those that were
--                                       handed back; from its claim on
--   handed_back, spared                 the newest run that a stopping worker gave up, and how many claimed ones of the
--                                       turn it were: these don't count against the agent's own limit
--   request, caller                     what the run shall do, and for whom; gone with the task's end, or, where that is a
--                                       dead letter, when it is requeued
--   options                             JSON: how the newest run is published, '' for as its agent is; not_before_us, if
--                                       there, is when it may begin; goes with the request
--   begins_at                           not_before_us of options, which may be large; not there where there are none
--   working, canceled                   the events WORKING, ready for a claim, and CANCELED, once a client asked and a
--                                       run was open; gone with the task's end
--   asked_to_cancel, cancel_asked_at    '1' once a client asked; when it first did, µs, if a run was open
--   nonce                               of the last accepted call, for repeated ones: a message that waits; 'begun ' and
--                                       a message that did not; 'canceled ', a cancel, the run and the canvas it ended
--   retention                           seconds; given at the task's creation
--   settled                             for repeated calls: token, version, state and next run of the last settlement
--                                       that began a turn
--   retried                             run, and how often Celery retried it: copies of messages from before that are dropped
--   canvas, canvases                    JSON: the canvas that a handed run waits for, and the list such runs are in
--   dispatched_again                    how often the newest run was published again
--   claimed_at, worker                  when the newest claim was, µs, and what Celery's listeners know the worker as; ''
--                                       where nobody listens; the latter goes with the task's end
--   silent                              the newest run, if it has written steps of its execution and no event yet
--   trace                               W3C traceparent that options name, '' for none; not there where there are no options;
--                                       from the task's end on only if it has configs
--   held                                "<run> <µs> <µs>": a worker has that run in hand; when it is published again anyway, and
--                                       when its worker counts as silent
--   published_at                        "<run> <µs>": when the broker last confirmed a message of that run, or a watcher was about to publish it
--   fell                                processes that were lost before they had claimed it, a space behind each
--   asked                               how many answers the agent's `ask` has got or waits for
--   paused_in                           the state in which the task waited for the current turn's message; not there for
--                                       its first
--   unanswered, pauses                  the event that ends a pause nobody answers ('' if pauses don't end), and the list of
--                                       pauses; there from the first pause on; the event goes with the task's end
--   requeued_as                         the task that a dead letter became
--   push                                the push-notification configs to which events are owed: their ids, quoted, a space
--                                       behind each; not those given up. Not there for a task that has no configs
--   deliveries, dead_deliveries         the lists that a task's delivery lines are in; there with push
--   leases, dispatch                    the keys that are not the task's own
--   queue                               the list of its agent's runs that wait for a worker; not there where nobody bounds it
--   waker, waker_stops                  the channel on which who made the task follows it, and '1' if it is rung there only
--                                       when it pauses or ends; gone with the task's end
--   row                                 the list of tasks in its context that run one after the other; not there where they
--                                       need not
--   turn_at                             when a run of it last got the turn in its row, µs: it waits for a worker since then
--   requeued_from                       the dead letters that it was made from, one after another: their ids, quoted, a
--                                       space behind each
--
-- A delivery line is a task's log on its way to one of the task's configs: the log itself is the queue, the line a place in
-- it. Both are fields of the hash `push`, each behind "<config id, quoted>:":
--   sealed, secret                      the config; the list of lines whose configs are sealed with the same secret
--   delivered                           the version up to which its events were delivered
--   token                               of who has the line in hand; not there when nobody has
--   settled                             for repeated calls: token of who last gave the line back, or replayed it
--   failures, first_failed_at           since its last event was delivered: how often that failed, and when first, µs
--   said, said_at                       JSON: what was said of the newest failure since then, or of the end; when, µs
--   died_at                             when it was given up, µs
-- In lists a line is "<tag of its task> <config id, quoted>".
--
-- A session is a hash, one for each scope and context:
--   version, state                      how often it was saved, and its newest state, sealed or in clear
--   task, turn, token                   who saved it: task, turn, and the token of the run's claim
--   secret                              the list of what is sealed with the same secret; not there in clear
--
-- LEGAL and TERMINAL, INTERRUPTED (tables by state number) and SUBMITTED, WORKING, COMPLETED, FAILED, CANCELED stand above:
-- they are made from lifecycle/states.py.

-- As keys.quoted: every byte but the plain ones as %XX.
local function quoted(text)
  return (string.gsub(text, '[^A-Za-z0-9_.~@-]', function(c) return string.format('%%%02X', string.byte(c)) end))
end

local function micros(n) return string.format('%.0f', n) end

local function now()
  local t = redis.call('TIME')
  return tonumber(t[1]) * 1000000 + tonumber(t[2])
end

-- Counts in the figures of the whole deployment; store/figures.py has the fields. Tasks of another engine have no agent.
local function tally(r, what, label, times)
  local agent = string.match(r.scope or '', '^[^/]+')
  if agent then
    redis.call('HINCRBY', string.gsub(r.leases, 'leases$', 'figures'), what .. ' ' .. agent .. ' ' .. label, times or 1)
  end
end

-- Counts a time that began at `since` (µs; nil: nobody knows) in its bucket: the first of BOUNDS that is not less.
local function took(r, what, since)
  if not since then return end
  local us, bucket = math.max(0, now() - tonumber(since)), #BOUNDS + 1
  for i = #BOUNDS, 1, -1 do
    if us <= BOUNDS[i] then bucket = i end
  end
  tally(r, what, bucket)
  tally(r, what, 'sum', micros(us))
end

local FIELDS = {'state', 'at', 'version', 'run', 'seq', 'turn', 'attempt', 'task_id', 'scope', 'scope_index',
  'context_index', 'context', 'status', 'has_message', 'phase', 'token', 'runner', 'asked_to_cancel', 'nonce',
  'retention', 'leases', 'dispatch', 'settled', 'pauses', 'max_attempts', 'push', 'row', 'claimed_at', 'silent', 'queue',
  'waker', 'waker_stops', 'entered_at'}
local NUMBERS = 7 -- so many of them, from the first on, are counted with

-- The record as a table; nil when there is no such task. Fields that are large, or rarely asked for (request, caller …),
-- are fetched when they are: an append must not cost what the client once sent. One of FIELDS that isn't there is false.
local function load(keys)
  local values = redis.call('HMGET', keys[1], unpack(FIELDS))
  if not values[8] then return nil end
  local r = {}
  for i, field in ipairs(FIELDS) do r[field] = i <= NUMBERS and tonumber(values[i]) or values[i] end
  r.owed, r.stopped, r.news, r.news_bytes = false, false, {}, 0 -- what this script has done so far
  return setmetatable(r, {__index = function(_, field) return redis.call('HGET', keys[1], field) or nil end})
end

-- What `snapshot` needs of the record, its scope and its state; nil when there is no such task. For readers, who leave the
-- rest.
local function glance(keys)
  local v = redis.call('HMGET', keys[1], 'task_id', 'scope', 'context', 'version', 'at', 'status', 'has_message', 'state')
  return v[1] and {task_id = v[1], scope = v[2], context = v[3], version = v[4], at = v[5], status = v[6],
    has_message = v[7], state = tonumber(v[8])}
end

-- The time of a new entry: the server's, but never before the entry it follows.
local function clock(r)
  local t = now()
  if r.at and t <= r.at then t = r.at + 1 end
  return t
end

-- A task stands in the lists under the tag of its keys, so that a lister finds them again.
local function tag(keys) return string.match(keys[1], '{(.-)}') end

local PARTS = {'task', 'log', 'history', 'artifacts', 'artifact:', 'metadata', 'turns', 'wake', 'push', 'execution'}

-- A task's ten keys, from the tag that the lists know it by; each is made when it is asked for.
local function keys_of(prefix, name)
  local stem = prefix .. ':{' .. name .. '}:'
  return setmetatable({}, {__index = function(_, n) return stem .. PARTS[n] end})
end

local function blobs_key(leases) return (string.gsub(leases, 'leases$', 'blobs')) end

-- Whether a new task refers to blobs that nobody vouches for any more: `bytes` is its first event, see store/references.py.
local function unkept(keys, leases, bytes)
  return string.byte(bytes) == 0 and redis.call('EXISTS', keys[1]) == 0 and
    not redis.call('ZSCORE', blobs_key(leases), tag(keys))
end

-- A task as operators list it: `score` (of the list it was found in), then these fields of its record, none of which holds
-- anything that a client or an agent said; nil when there is no such task. The field `at` is when it entered its state.
local function listed_row(record, score)
  local row = redis.call('HMGET', record, 'task_id', 'run', 'agent', 'context', 'scope', 'state', 'at', 'runner', 'attempt',
    'max_attempts', 'cancel_asked_at', 'dispatched_again', 'begins_at', 'claimed_at', 'entered_at')
  if not row[1] then return nil end
  row[7] = table.remove(row) or row[7]
  table.insert(row, 1, score)
  return row
end

-- Whether ended tasks go to an archive: then nothing of them expires before their copy is there, see let_go.
local function is_archiving(keys, r)
  if rawget(r, 'archiving') == nil then
    r.archiving = redis.call('HGET', string.match(keys[1], '^(.*):{') .. ':installation', 'archive') == '1'
  end
  return r.archiving
end

local function list_in(keys, r, state, at)
  for _, index in ipairs({r.scope_index, r.context_index}) do
    redis.call('ZADD', index .. state, micros(at), tag(keys))
    if TERMINAL[state] and is_archiving(keys, r) then
      redis.call('PERSIST', index .. state)
    elseif TERMINAL[state] then
      redis.call('ZREMRANGEBYSCORE', index .. state, '-inf', micros(at - tonumber(r.retention) * 1000000))
      redis.call('EXPIRE', index .. state, r.retention)
    end
  end
end

local function unlist(keys, r, state)
  for _, index in ipairs({r.scope_index, r.context_index}) do
    redis.call('ZREM', index .. state, tag(keys))
  end
end

-- What a script writes is owed to each line; one that is under way, or backs off, stays due when it is.
local function owe(keys, r)
  r.owed = true
  local new = 0
  for config in string.gmatch(r.push, '%S+') do
    new = new + redis.call('ZADD', r.deliveries, 'NX', micros(now()), tag(keys) .. ' ' .. config)
  end
  if new > 0 then redis.call('PUBLISH', r.deliveries .. ':wake', '') end
end

-- What a ring may bring along, see store/news.py: so many bytes take a gateway less time than to ask for them.
local NEWS_BYTES = 8192

-- So many entries are most turns from beginning to end.
local NEWS_ENTRIES = 16

-- An entry of the log is news. One that has parts in the object store must be read.
local function tell(r, entry)
  local is_elsewhere = string.byte(entry, string.find(entry, ' ', 1, true) + 1) == 0
  r.news_bytes = r.news_bytes + (is_elsewhere and NEWS_BYTES + 1 or #entry)
  if r.news_bytes <= NEWS_BYTES then r.news[#r.news + 1] = struct.pack('>I4', #entry) .. entry end
end

local function write_log(keys, r, at, bytes)
  r.version = r.version + 1
  local entry = micros(at) .. ' ' .. bytes
  redis.call('RPUSH', keys[2], entry)
  if r.waker and r.waker_stops ~= '1' then tell(r, entry) end
  if r.push and not r.owed then owe(keys, r) end
end

-- A client's message joins the history, behind what the agent said before it.
local function hear(keys, r, at, message)
  write_log(keys, r, at, message)
  if r.has_message == '1' then redis.call('RPUSH', keys[3], r.status) end
  r.has_message = '0'
  redis.call('RPUSH', keys[3], message)
end

-- A message that waits for its turn, as continue_task leaves it: message, SUBMITTED, request, caller, options, and what
-- its message gets behind it if the task ends first; nil when none waits.
local function next_waiting(keys)
  local waiting = redis.call('LPOP', keys[7])
  if waiting then return {struct.unpack('>I4c0I4c0I4c0I4c0I4c0I4c0', waiting)} end
end

-- The task will end in `state`: messages that still wait are kept in its history, marked as such. Two serialized
-- protobuf messages in a row are one, merged.
local function hear_the_rest(keys, r, state)
  if not TERMINAL[state] then return end
  local waiting = next_waiting(keys)
  while waiting do
    hear(keys, r, clock(r), waiting[1] .. waiting[6])
    waiting = next_waiting(keys)
  end
end

local function set_status(keys, r, state, has_message, bytes, at)
  if r.has_message == '1' then redis.call('RPUSH', keys[3], r.status) end
  if r.state ~= state then
    unlist(keys, r, r.state)
    if r.entered_at then redis.call('HDEL', keys[1], 'entered_at') end
    r.entered_at = false
  elseif not r.entered_at then
    r.entered_at = micros(r.at)
    redis.call('HSET', keys[1], 'entered_at', r.entered_at)
  end
  list_in(keys, r, state, at)
  r.state, r.at, r.status, r.has_message = state, at, bytes, has_message
  if TERMINAL[state] or INTERRUPTED[state] then r.stopped = true end
end

-- An event of the script's own that only changes the status: into the log and the task.
local function write_status(keys, r, state, has_message, bytes)
  hear_the_rest(keys, r, state)
  local at = clock(r)
  write_log(keys, r, at, bytes)
  set_status(keys, r, state, has_message, bytes, at)
end

-- metadata: pairs of big-endian length and bytes, key and value in turn
local function merge_metadata(keys, packed)
  local position = 1
  while position <= #packed do
    local key, value
    key, value, position = struct.unpack('>I4c0I4c0', packed, position)
    redis.call('HSET', keys[6], key, value)
  end
end

local function add_chunk(keys, artifact_id, append, bytes)
  local chunks = keys[5] .. artifact_id
  if redis.call('EXISTS', chunks) == 0 then
    redis.call('RPUSH', keys[4], artifact_id)
  elseif append ~= '1' then
    redis.call('DEL', chunks)
  end
  redis.call('RPUSH', chunks, bytes)
end

local function run_name(r) return r.task_id .. '.' .. micros(r.run) end

-- µs at which a run may begin that is published with `options`, as in a record; 0: at once, or unreadable.
-- RunOptions.to_json writes it first: what else is in there may be as large as what the client sent.
local function begins_at(options)
  if not options then return 0 end
  local first = string.match(options, '^{"not_before_us":(%-?%d+)')
  if first then return tonumber(first) end
  if not string.find(options, '"not_before_us":', 1, true) then return 0 end
  local read, fields = pcall(cjson.decode, options)
  return read and fields.not_before_us or 0
end

-- The trace that the options of a run name, '' for none; RunOptions.to_json writes nothing but a number before it.
local function trace_of(options)
  local rest = string.gsub(options or '', '^{"not_before_us":%-?%d+,', '{', 1)
  return string.match(rest, '^{"trace":{"traceparent":"([%x-]+)"') or ''
end

-- Keeps the options of a run, and beside them what is asked for often.
local function keep_options(record, options)
  redis.call('HSET', record, 'options', options)
  if options == '' then
    redis.call('HDEL', record, 'begins_at', 'trace')
  else
    redis.call('HSET', record, 'begins_at', micros(begins_at(options)), 'trace', trace_of(options))
  end
end

-- One run of a context at a time: its tasks with open runs stand in a row, by the tags of their keys, and the first of them
-- has the turn. The others' runs are queued, but not to be published: they are in the list of those that stand behind.
local function stands_behind(keys, r)
  if not r.row then return false end
  local first = redis.call('LINDEX', r.row, 0)
  return first and first ~= tag(keys)
end

-- Where an agent's queue is bounded, its list has each of its tasks whose newest run waits, since when (µs).
local function enter_queue(r)
  if r.queue then redis.call('ZADD', r.queue, 'NX', micros(now()), quoted(r.task_id)) end
end

local function leave_queue(r)
  if r.queue then redis.call('ZREM', r.queue, quoted(r.task_id)) end
end

-- A run wants a worker: it is published, by a watcher at due (µs), or stands behind another.
local function queue_run(keys, r, due)
  enter_queue(r)
  if r.row and redis.call('RPUSH', r.row, tag(keys)) > 1 then
    redis.call('ZADD', r.dispatch .. ':behind', micros(now()), run_name(r))
  else
    redis.call('ZADD', r.dispatch, micros(due), run_name(r))
  end
end

-- The task leaves its row; the run that has the turn then, if that is new, will be published by a watcher in after_us.
-- Gives its task's id, its number and its options, all '' if there is none.
local function leave_row(keys, r, after_us)
  if not r.row then return '', '', '' end
  local first = redis.call('LINDEX', r.row, 0)
  redis.call('LREM', r.row, 1, tag(keys))
  redis.call('ZREM', r.dispatch .. ':behind', run_name(r))
  if first ~= tag(keys) then return '', '', '' end
  local prefix = string.match(keys[1], '^(.*):{')
  first = redis.call('LINDEX', r.row, 0)
  while first do
    local next = redis.call('HMGET', keys_of(prefix, first)[1], 'task_id', 'run', 'phase', 'options')
    if next[3] == 'queued' then
      local name = next[1] .. '.' .. next[2]
      redis.call('ZREM', r.dispatch .. ':behind', name)
      redis.call('ZADD', r.dispatch, micros(now() + after_us), name)
      redis.call('HSET', keys_of(prefix, first)[1], 'turn_at', micros(now()))
      return next[1], next[2], next[4] or ''
    end
    redis.call('LPOP', r.row) -- it is gone
    first = redis.call('LINDEX', r.row, 0)
  end
  return '', '', ''
end

local function close_run(r)
  if r.phase == 'running' then took(r, 'run', r.claimed_at) end
  if r.phase == 'queued' then leave_queue(r) end
  redis.call('ZREM', r.leases, run_name(r))
  redis.call('ZREM', r.dispatch, run_name(r))
  if r.phase == 'handed' then redis.call('ZREM', r.canvases, run_name(r)) end
  r.phase, r.runner = '', ''
end

-- Return how many of a claimed run's confirmed events are missing, nil for none. They are missing when the store was restored
-- from an older state. The run is fenced off and its lease ends, so that a watcher lapses the run.
local function missing_events(keys, r, confirmed)
  if r.seq >= confirmed then return nil end
  redis.call('HSET', keys[1], 'token', '')
  redis.call('ZADD', r.leases, micros(now()), run_name(r))
  return micros(confirmed - r.seq)
end

local function end_pause(keys, r)
  if r.pauses then redis.call('ZREM', r.pauses, tag(keys)) end
end

-- Writes back what a script may have changed of the record.
local function save(keys, r)
  redis.call('HSET', keys[1],
    'state', micros(r.state), 'at', micros(r.at), 'status', r.status, 'has_message', r.has_message,
    'version', micros(r.version), 'run', micros(r.run), 'phase', r.phase, 'token', r.token, 'runner', r.runner,
    'seq', micros(r.seq), 'turn', micros(r.turn), 'attempt', micros(r.attempt),
    'asked_to_cancel', r.asked_to_cancel, 'nonce', r.nonce)
end

-- A list of lines, scored by when their tasks' keys go (inf: the tasks live), goes with the last of them.
local function prune(list)
  redis.call('ZREMRANGEBYSCORE', list, '-inf', micros(now()))
  local last = redis.call('ZREVRANGE', list, 0, 0, 'WITHSCORES')
  if last[2] == 'inf' then
    redis.call('PERSIST', list)
  elseif last[2] then
    redis.call('PEXPIREAT', list, micros(math.ceil(tonumber(last[2]) / 1000)))
  end
end

-- µs at which a task's keys go.
local function gone_at(keys)
  local left = redis.call('PTTL', keys[1])
  return left < 0 and math.huge or now() + left * 1000
end

-- The quoted ids of a task's configs.
local function configs_of(keys)
  local configs = {}
  for _, field in ipairs(redis.call('HKEYS', keys[9])) do
    configs[#configs + 1] = string.match(field, '^(.*):sealed$')
  end
  table.sort(configs)
  return configs
end

-- The lines of a task that is over stand in lists as long as it is kept.
local function retire_lines(keys, r)
  local at = micros(now() + tonumber(r.retention) * 1000000)
  for _, config in ipairs(configs_of(keys)) do
    for _, list in ipairs({r.dead_deliveries, redis.call('HGET', keys[9], config .. ':secret')}) do
      redis.call('ZADD', list, 'XX', at, tag(keys) .. ' ' .. config)
      prune(list)
    end
  end
  redis.call('EXPIRE', keys[9], r.retention)
end

-- All keys of a task that is over go together, `retention` seconds from now.
local function let_expire(keys, r)
  for _, artifact_id in ipairs(redis.call('LRANGE', keys[4], 0, -1)) do
    redis.call('EXPIRE', keys[5] .. artifact_id, r.retention)
  end
  for _, i in ipairs({1, 2, 3, 4, 6, 10}) do redis.call('EXPIRE', keys[i], r.retention) end
  if r.push then retire_lines(keys, r) end
end

-- The task is over: its run too, and all its keys go together, or wait for the archive. `dead_letters` (a key) if it may be requeued: then what it
-- takes to run it again stays.
local function retire(keys, r, dead_letters)
  close_run(r)
  leave_row(keys, r, 0)
  tally(r, 'ended', micros(r.state))
  if r.state == CANCELED then took(r, 'cancel', r.cancel_asked_at) end
  end_pause(keys, r)
  redis.call('DEL', keys[7])
  if dead_letters then
    redis.call('HDEL', keys[1], 'working', 'canceled', 'settled', 'unanswered', 'canvas', 'worker', 'waker', 'waker_stops')
    redis.call('ZREMRANGEBYSCORE', dead_letters, '-inf', micros(now()))
    redis.call('ZADD', dead_letters, micros(now() + tonumber(r.retention) * 1000000), tag(keys))
    redis.call('EXPIRE', dead_letters, math.max(tonumber(r.retention), redis.call('TTL', dead_letters)))
  else
    redis.call('HDEL', keys[1], 'working', 'canceled', 'settled', 'unanswered', 'canvas', 'worker', 'waker',
      'waker_stops', 'request', 'caller', 'options', 'begins_at', unpack(r.push and {} or {'trace'}))
  end
  if is_archiving(keys, r) then
    redis.call('ZADD', string.match(keys[1], '^(.*):{') .. ':archive', micros(r.at + tonumber(r.retention) * 1000000), tag(keys))
  else
    let_expire(keys, r)
  end
end

-- Events come as five arguments each, from ARGV[first] on: kind, subject, flag, bytes, metadata (packed)
--   S  the new state       '1' if it has a message
--   A  the artifact's id   '1' if it is appended
--   M  ''                  ''
--   U  ''                  ''
--   X  ''                  ''          no event: a step of the run's execution, which is not in the log; never behind the end

-- nil when the events are legal in their order, else the number of the first that is not
local function first_illegal(r, first)
  local state = r.state
  for i = first, #ARGV, 5 do
    if TERMINAL[state] then return (i - first) / 5 + 1 end
    local after
    if ARGV[i] == 'S' then after = tonumber(ARGV[i + 1]) end
    if ARGV[i] == 'M' then after = COMPLETED end
    if after then
      if not LEGAL[state][after] then return (i - first) / 5 + 1 end
      state = after
    end
  end
  return nil
end

local MAX_STEPS = 1000 -- of a task's executions, the newest

-- Applies the events to the task. The caller has checked that they may be; it saves the record afterwards.
local function apply_events(keys, r, first)
  for i = first, #ARGV, 5 do
    local kind, subject, flag, bytes, metadata = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
    local after = kind == 'S' and tonumber(subject) or kind == 'M' and COMPLETED
    hear_the_rest(keys, r, after)
    local at = kind ~= 'X' and clock(r)
    if at and kind ~= 'U' then write_log(keys, r, at, bytes) end
    if kind == 'S' then
      set_status(keys, r, after, flag, bytes, at)
      merge_metadata(keys, metadata)
    elseif kind == 'M' then
      set_status(keys, r, COMPLETED, '1', bytes, at)
    elseif kind == 'A' then
      add_chunk(keys, subject, flag, bytes)
    elseif kind == 'U' then
      hear(keys, r, at, bytes)
    elseif kind == 'X' and redis.call('RPUSH', keys[10], bytes) > MAX_STEPS then
      redis.call('LPOP', keys[10])
    end
  end
end

-- The task as a whole becomes what the arguments from ARGV[first] on say: task event, state, status event, '1' if the
-- status has a message, metadata (packed), how many history events, they, and pairs of artifact id and chunk.
local function replace_task(keys, r, first)
  local at = clock(r)
  write_log(keys, r, at, ARGV[first])
  for _, artifact_id in ipairs(redis.call('LRANGE', keys[4], 0, -1)) do redis.call('DEL', keys[5] .. artifact_id) end
  redis.call('DEL', keys[3], keys[4], keys[6])
  r.has_message = '0'
  set_status(keys, r, tonumber(ARGV[first + 1]), ARGV[first + 3], ARGV[first + 2], at)
  merge_metadata(keys, ARGV[first + 4])
  local history = first + 6
  local artifacts = history + tonumber(ARGV[first + 5])
  for i = history, artifacts - 1 do redis.call('RPUSH', keys[3], ARGV[i]) end
  for i = artifacts, #ARGV, 2 do add_chunk(keys, ARGV[i], '0', ARGV[i + 1]) end
end

-- Counts the time to a run's first event, once it is among those that the arguments from ARGV[first] on say; `before`
-- were written before.
local function took_first(keys, r, before, first)
  if before > 0 and r.silent ~= micros(r.run) then return end
  for i = first, #ARGV, 5 do
    if ARGV[i] ~= 'X' then
      if r.silent then redis.call('HDEL', keys[1], 'silent') end
      return took(r, 'first', r.claimed_at)
    end
  end
  redis.call('HSET', keys[1], 'silent', micros(r.run))
end

-- Rings who follows the task, see store/wake.py. A pause that a message ended in the same script is over, and was one. Who
-- made it gets news with the ring: what this script has written, or, if it waits for the end, all behind the beginning.
local function wake(keys, r)
  local said = micros(r.version) .. (r.stopped and ' stopped' or '')
  redis.call('PUBLISH', keys[8], said)
  if not r.waker or (r.waker_stops == '1' and not r.stopped) then return end
  if r.waker_stops == '1' and r.version <= NEWS_ENTRIES then
    local i = 1
    while i < r.version and r.news_bytes <= NEWS_BYTES do -- what is large is not taken into hands
      tell(r, redis.call('LINDEX', keys[2], i))
      i = i + 1
    end
  end
  if #r.news > 0 and r.news_bytes <= NEWS_BYTES then
    said = said .. '\n' .. micros(r.state) .. (r.phase == '' and ' 0 ' or ' 1 ') .. table.concat(r.news)
  end
  redis.call('PUBLISH', r.waker, keys[8] .. ' ' .. said)
end

-- Entries of histories and artifacts that one call of a script may still read: Redis serves nobody meanwhile, and the tables
-- of Redis 6.2 get slow with their length.
local entries_left = 1000

-- A list's entries, or the newest of them; nil if they are more than are left.
local function read_entries(list, newest)
  if entries_left < 0 then return nil end
  local first = newest and -math.min(newest, entries_left + 1) or 0
  local entries = redis.call('LRANGE', list, first, newest and -1 or entries_left)
  entries_left = entries_left - #entries
  return entries_left >= 0 and entries or nil
end

-- The history and the chunks of each artifact; nil if they are more entries than are left.
local function read_contents(keys, history_length, with_artifacts)
  local history, artifacts = {}, {}
  if history_length ~= 0 then
    history = read_entries(keys[3], history_length > 0 and history_length or nil)
    if not history then return nil end
  end
  if with_artifacts then
    local artifact_ids = read_entries(keys[4])
    if not artifact_ids then return nil end
    for i, artifact_id in ipairs(artifact_ids) do
      artifacts[i] = read_entries(keys[5] .. artifact_id)
      if not artifacts[i] then return nil end
    end
  end
  return history, artifacts
end

-- The snapshot as readers take it; history_length < 0 means all of it. For a task that is too long for one call: how much of
-- it is wanted, and where its record and log are, see store/long_tasks.py.
local function snapshot(keys, r, history_length, with_artifacts)
  local history, artifacts = read_contents(keys, history_length, with_artifacts)
  if not history then
    return {
      r.task_id, r.context, micros(r.version), micros(r.at), r.status, r.has_message, micros(history_length),
      with_artifacts and '1' or '0', keys[1], keys[2],
    }
  end
  return {
    r.task_id, r.context, micros(r.version), micros(r.at), r.status, r.has_message, history,
    redis.call('HGETALL', keys[6]), artifacts,
  }
end

-- The next turn begins: the client's message enters the log, the task is SUBMITTED again, a run waits for a worker.
-- message and submitted are encoded events; due_us is how long the publisher has before the watcher takes over.
local function begin_turn(keys, r, message, submitted, request, caller, options, due_us)
  end_pause(keys, r)
  local at = clock(r)
  hear(keys, r, at, message)
  redis.call('HSET', keys[1], 'paused_in', micros(r.state))
  write_log(keys, r, at, submitted)
  set_status(keys, r, SUBMITTED, '0', submitted, at)
  r.run, r.turn, r.attempt, r.seq = r.run + 1, r.turn + 1, 1, 0
  r.phase, r.token, r.runner = 'queued', '', ''
  redis.call('HSET', keys[1], 'request', request, 'caller', caller)
  keep_options(keys[1], options)
  redis.call('HDEL', keys[1], 'dispatched_again', 'spared', 'fell')
  queue_run(keys, r, at + due_us)
end

-- Sessions come as six arguments, from ARGV[first] on: key, version that the state was made from, state ('': as it was
-- saved), fingerprint of the secret ('': in clear), list of what is sealed with that, key of the secrets.

-- The version that another run has saved since; nil if none has. One that has expired since nobody saved.
local function saved_since(first)
  local version = ARGV[first + 2] ~= '' and redis.call('HGET', ARGV[first], 'version')
  return version and tonumber(version) ~= tonumber(ARGV[first + 1]) and version or nil
end

-- It lives on for the task's retention, if there is one.
local function keep_session(r, session)
  if redis.call('EXPIRE', session, r.retention) == 0 then return end
  local list = redis.call('HGET', session, 'secret')
  if list then
    redis.call('ZADD', list, micros(now() + tonumber(r.retention) * 1000000), session)
    prune(list)
  end
end

-- Saves it, and lets it live on.
local function save_session(r, first)
  local session, before, state, fingerprint, secret, secrets = unpack(ARGV, first, first + 5)
  if state ~= '' then
    local known = redis.call('HGET', session, 'secret')
    if known and known ~= secret then
      redis.call('ZREM', known, session)
      redis.call('HDEL', session, 'secret')
    end
    redis.call('HSET', session, 'version', micros(tonumber(before) + 1), 'state', state, 'task', r.task_id,
      'turn', micros(r.turn), 'token', r.token)
    if fingerprint ~= '' then
      redis.call('HSET', session, 'secret', secret)
      redis.call('HSET', secrets, fingerprint, secret)
    end
  end
  keep_session(r, session)
end

-- What was accepted under a message id before: {digest, task id, its record, version, ahead}; nil when nothing was, or
-- when its task is gone. The two numbers say where in the log the message's turn is, see Known in store/tasks.py.
-- message_key is '' where a client may use an id again.
local function heard_before(message_key)
  if message_key == '' then return nil end
  local heard = redis.call('HMGET', message_key, 'digest', 'task_id', 'record', 'version', 'ahead')
  if not heard[1] or redis.call('EXISTS', heard[3]) == 0 then return nil end
  return heard
end

local function remember(message_key, digest, window_ms, task_id, record, version, ahead)
  if message_key == '' then return end
  redis.call('HSET', message_key,
    'digest', digest, 'task_id', task_id, 'record', record, 'version', micros(version), 'ahead', micros(ahead))
  redis.call('PEXPIRE', message_key, window_ms)
end

local LINE_FIELDS = {'sealed', 'secret', 'delivered', 'token', 'settled', 'failures', 'first_failed_at', 'said',
  'said_at', 'died_at'}

-- A line as a table; nil when there is no such config. `config` is its id, quoted.
local function load_line(keys, config)
  local fields = {}
  for i, field in ipairs(LINE_FIELDS) do fields[i] = config .. ':' .. field end
  local values = redis.call('HMGET', keys[9], unpack(fields))
  if not values[1] then return nil end
  local line = {}
  for i, field in ipairs(LINE_FIELDS) do line[field] = values[i] or nil end
  line.delivered, line.failures = tonumber(line.delivered), tonumber(line.failures or '0')
  return line
end

-- Sets fields of a line, given as pairs; false takes one out.
local function change_line(keys, config, ...)
  local pairs_of = {...}
  for i = 1, #pairs_of, 2 do
    local field = config .. ':' .. pairs_of[i]
    if pairs_of[i + 1] then redis.call('HSET', keys[9], field, pairs_of[i + 1]) else redis.call('HDEL', keys[9], field) end
  end
end

-- What is owed to a line, if anything, is due in after_us.
local function due_in(keys, r, config, delivered, after_us)
  if delivered < r.version then
    redis.call('ZADD', r.deliveries, micros(now() + after_us), tag(keys) .. ' ' .. config)
    if after_us == 0 then redis.call('PUBLISH', r.deliveries .. ':wake', '') end
  else
    redis.call('ZREM', r.deliveries, tag(keys) .. ' ' .. config)
  end
end

-- Counts what became of posts, for whoever draws curves.
local function count(r, outcome) redis.call('HINCRBY', r.deliveries .. ':outcomes', outcome, 1) end

-- Events are owed to the line, or not any more.
local function owed_to(keys, r, config, is_owed)
  local others = {}
  for other in string.gmatch(r.push or '', '%S+') do
    if other ~= config then others[#others + 1] = other .. ' ' end
  end
  r.push = table.concat(others) .. (is_owed and config .. ' ' or '')
  redis.call('HSET', keys[1], 'push', r.push)
end

local function forget_config(keys, r, config, line)
  local name = tag(keys) .. ' ' .. config
  for _, list in ipairs({r.deliveries, r.dead_deliveries, line.secret}) do redis.call('ZREM', list, name) end
  for _, field in ipairs(LINE_FIELDS) do redis.call('HDEL', keys[9], config .. ':' .. field) end
  owed_to(keys, r, config, false)
  if redis.call('EXISTS', keys[9]) == 0 then
    redis.call('HDEL', keys[1], 'push', 'deliveries', 'dead_deliveries')
    r.push = false
  end
end

-- Saves a config, as the arguments from ARGV[first] on say: id, quoted ('' for none: nothing is done), sealed,
-- fingerprint of its secret, list of the lines with that secret, key of the secrets, deliveries key, dead deliveries key,
-- how many configs a task may have. The place of a new line is `delivered`; one that is there keeps its own, and is due
-- at once. false: the task has too many.
local function save_config(keys, r, first, delivered)
  local config, sealed, fingerprint, secret, secrets, deliveries, dead = unpack(ARGV, first, first + 6)
  if config == '' then return true end
  local line = load_line(keys, config)
  if line and line.sealed == sealed then return true end -- a repeated call
  if not line and #configs_of(keys) >= tonumber(ARGV[first + 7]) then return false end
  if line then
    delivered = line.delivered
    forget_config(keys, r, config, line)
  end
  redis.call('HSET', keys[9], config .. ':sealed', sealed, config .. ':secret', secret,
    config .. ':delivered', micros(delivered))
  r.deliveries, r.dead_deliveries = deliveries, dead
  redis.call('HSET', keys[1], 'deliveries', deliveries, 'dead_deliveries', dead)
  owed_to(keys, r, config, true)
  local left = redis.call('PTTL', keys[1])
  if left >= 0 then redis.call('PEXPIRE', keys[9], left) end
  redis.call('HSET', secrets, fingerprint, secret)
  redis.call('ZADD', secret, micros(gone_at(keys)), tag(keys) .. ' ' .. config)
  prune(secret)
  due_in(keys, r, config, delivered, 0)
  return true
end

-- The line if `token` still has it in hand. Else nil, and whether that token was the last to give it back.
local function held_line(keys, config, token)
  local line = load_line(keys, config)
  if line and line.token == token then return line end
  return nil, line and line.settled == token
end

-- A line as operators see it, never its config: the fields of Delivery in store/deliveries.py.
local function line_row(r, config, line, due)
  return {
    r.task_id, config, r.agent, r.context, micros(line.delivered), micros(r.version), line.token and '1' or '0',
    micros(line.failures), line.first_failed_at or '', due or '', line.said or '', line.said_at or '',
    line.died_at or '',
  }
end

-- Limits come as JSON, '' for none: concurrent, waiting, queued (how many there may be, each left out for as many as there
-- are), lists (prefixes of the lists of the owner's tasks, one for each agent), queue (the list of the agent's runs that
-- wait), figures (a key) and agent, quoted.

local LOOKED_AT = 16

-- Members that are not what `list` says leave it: their keys were evicted, say, or a worker of an older release has them,
-- and a place that nobody holds must not stay taken. The oldest are looked at. Gives whether one was found.
local function sweep(prefix, list, field, value)
  local gone = 0
  for _, name in ipairs(redis.call('ZRANGE', list, 0, LOOKED_AT - 1)) do
    if redis.call('HGET', keys_of(prefix, name)[1], field) ~= value then gone = gone + redis.call('ZREM', list, name) end
  end
  return gone > 0
end

-- The name of the first limit that is reached, and how many it allows; nil if none is.
local function reached(limits)
  local waiting, open = 0, 0
  for _, index in ipairs(limits.lists) do
    local submitted = redis.call('ZCARD', index .. SUBMITTED)
    waiting, open = waiting + submitted, open + submitted + redis.call('ZCARD', index .. WORKING)
  end
  if open >= (limits.concurrent or math.huge) then return 'concurrent', limits.concurrent end
  if waiting >= (limits.waiting or math.huge) then return 'waiting', limits.waiting end
  if limits.queued and redis.call('ZCARD', limits.queue) >= limits.queued then return 'queued', limits.queued end
end

-- µs until the next of so many places gets free, by the mean of the times counted so far; '0' when none was.
local function next_free(limits, what, places)
  local fields, times = {what .. ' ' .. limits.agent .. ' sum'}, 0
  for i = 1, #BOUNDS + 1 do fields[i + 1] = what .. ' ' .. limits.agent .. ' ' .. i end
  local counted = redis.call('HMGET', limits.figures, unpack(fields))
  for i = 2, #counted do times = times + tonumber(counted[i] or 0) end
  return times > 0 and micros(tonumber(counted[1] or 0) / times / places) or '0'
end

-- A run shall begin. {'limited', name, how many, µs until it may be tried again} if `said`, the limits, are against it;
-- else nil, and the list that the run joins while it waits, false for none. O(1) in tasks, O(agents).
local function refused(keys, said)
  if said == '' then return nil, false end
  local limits = cjson.decode(said)
  local name, most = reached(limits)
  if name then
    local prefix, found = string.match(keys[1], '^(.*):{'), false
    for _, index in ipairs(limits.lists) do
      for _, state in ipairs({SUBMITTED, WORKING}) do
        found = sweep(prefix, index .. state, 'state', micros(state)) or found
      end
    end
    if limits.queue then found = sweep(prefix, limits.queue, 'phase', 'queued') or found end
    if found then name, most = reached(limits) end
  end
  if not name then return nil, limits.queue or false end
  return {'limited', name, micros(most), next_free(limits, name == 'concurrent' and 'run' or 'queue', math.max(most, 1))}
end

-- Everything of a task goes at once; whoever calls this has taken it out of the lists.
local function delete_task(keys, r)
  for _, artifact_id in ipairs(redis.call('LRANGE', keys[4], 0, -1)) do redis.call('DEL', keys[5] .. artifact_id) end
  for _, config in ipairs(configs_of(keys)) do forget_config(keys, r, config, load_line(keys, config)) end
  redis.call('DEL', keys[1], keys[2], keys[3], keys[4], keys[6], keys[7], keys[10])
  redis.call('ZADD', blobs_key(r.leases), 'XX', micros(now()), tag(keys))
end
