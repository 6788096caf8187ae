-- requires: keys, stored_bytes, time

-- Fields of a record. A field without a value is absent, unless stated otherwise. The fields in DEFAULTS have a value
-- if they are absent.
--   task_id, scope             identity of the task
--   agent, context             agent, and context id of the request
--   state, at, status, has_message
--                              current status: number of the state, time in µs, event that set the status, '1' if the
--                              status has a message
--   entered_at                 µs at which the task entered its state, if that was before `at`
--   packed                     '1' if the task is packed, see lib/packed.lua; a packed record lacks `status`
--   version, recorded_at       number of the newest log entry, and the µs at which it was recorded (`at` if absent)
--   run, phase, token, runner, seq
--                              newest run: its number; 'queued', 'running', 'delegated' (to a canvas), 'suspended'
--                              (until a time or a signal) or '' (ended); token of its claim; its worker process; number
--                              of the events, activities and journal entries that it has written
--   turn, attempt              number of the current turn, and number of the run in the turn
--   max_attempts               maximum number of runs of the turn, including returned runs; set by the claim, and absent
--                              before the first claim of the turn
--   returned_run, uncounted_attempts
--                              newest run that a worker returned when it shut down, and the number of claimed runs of
--                              the turn that were returned; these do not count toward the agent's own limit
--   resumes                    see lib/task_waits.lua
--   cleanup, interrupted_turn  see lib/cleanup.lua
--   request, caller            request of the run without its message, which is in the history, and its caller; deleted
--                              when the task ends, unless the task can be resubmitted, see lib/retirement.lua
--   options                    JSON of the options with which the run is published; absent for the agent's own options;
--                              deleted with the request
--   begins_at, trace           not_before_us and the W3C traceparent of the options; absent without options. When the
--                              task ends, `trace` is kept only if the task has cursors
--   working_event, canceled_event
--                              WORKING event for the next claim; CANCELED event of a requested cancellation. Both are
--                              deleted when the task ends
--   cancel_requested, cancel_requested_at
--                              '1' after a client requested cancellation; time in µs of the first request while a run
--                              was claimed
--   nonce                      value that detects a repeated call: the nonce of the last waiting message; 'begun ' and
--                              the nonce of a message that began a run; or 'canceled ', the nonce of a cancellation,
--                              and the run and the canvas that the cancellation ended
--   earlier_nonces             nonces of the messages before, see lib/nonces.lua; deleted when the task ends
--   retention                  seconds for which the ended task is stored
--   settled                    token, version, state and next run of the last run that left its worker without the end
--                              of the task; the reply to a repeated call
--   retry_state                run, and number of its retries by Celery; messages of earlier retries are dropped
--   canvas, canvases           JSON of the canvas for which a delegated run waits, and key of the list of such runs
--   suspended, wait_signal     key of the list of suspended runs, and name of the signal for which a suspended run
--                              waits ('' for a time only)
--   wait_key, wait_header, wait_timeout
--                              journal entry that ends the wait of a suspended run: its key, the bytes before the
--                              payload of the signal, and the entry for a wait that times out
--   resumed_at, resumed_by     µs at which the newest run was queued after a suspension, and id, as in signal_ids, of
--                              the signal that resumed the run
--   signal_ids, signal_bytes   ids of the newest signals, quoted, or as SHA-1 if they are long, each followed by a
--                              space, to detect repeated signals; bytes of the stored signals
--   republish_count            number of times that the newest run was published again
--   recorded_result            "<run> <retries> <digest>": newest state in the result backend of a run that a worker
--                              without this package executes; deleted when the task ends
--   claimed_at, worker         time of the newest claim in µs, and Celery node name of the worker ('' if events are
--                              disabled); `worker` is deleted when the task ends
--   run_without_events         newest run, if it has recorded activities but no event
--   prefetched                 "<run> <µs> <µs>" if a worker has prefetched the run: time at which the run is published
--                              again in any case, and time at which its worker counts as lost
--   published_at               "<run> <µs>": time of the last confirmation by the broker, or of a watcher's attempt to
--                              publish; 0 if the queue cannot contain the message of the run
--   unreported_since           "<run> <µs>": time since which no worker reports a run of a plain task that may be lost
--   lost_processes             worker processes that were lost before they claimed the run, each followed by a space
--   ask_count                  number of answers that the agent's `ask` has received or waits for, including answers
--                              that the agent refused
--   interrupted_state          state before the message of the current turn, or INPUT_REQUIRED if the task was not
--                              interrupted; absent in the first turn
--   turn_messages              indexes, in the history, of the messages of the turns that led to the current turn by a
--                              question of `ask`, and of the message of the current turn, without refused answers;
--                              absent in the first turn. Deleted with the request
--   read_messages              indexes, in the history, of the messages that these earlier turns have read
--   has_messages               '1' if a message was delivered to an open run; deleted when the task ends
--   interrupt_requested        run that a message of the client interrupts; deleted when the task ends
--   pause_timeout, pauses      event that ends an unanswered pause ('' if pauses have no timeout), and key of the list
--                              of pauses; the event is deleted when the task ends
--   pause_data                 names of the fields that sections keep until the pause ends, each followed by a space, see
--                              lib/pauses.lua
--   requeued_from              quoted ids of the resubmitted tasks before this task, each followed by a space; read by
--                              sections
--   enabled_configs, deliveries, dead_deliveries
--                              see lib/cursors.lua
--   queue                      key of a list of queued runs, which has the task while its newest run is queued; set by
--                              sections
--   reply_channel, final_only  notification channel of the gateway that created the task; '1' if the channel receives
--                              final states only. Both are deleted when the task ends
--   context_queue, unblocked_at
--                              key of the queue of the context, if its runs are serialized, and µs at which a run of
--                              the task last became the first run of the queue
--   joined_indexes             prefixes of the further indexes that sections have joined, separated by spaces; absent
--                              without such indexes
--   journal_bytes              bytes of the journal, including keys; absent without a journal
--   blobs                      '1' if Redis has stored blobs of the task
--   journal_blobs              folder of the journal's blobs in the folder of the task; absent without such blobs
--   journal_origin             id of the first resubmitted task before this task, if the task continues with the journal
--                              of that task
--   code_version, claimed_version
--                              see lib/code_versions.lua. A task that can be resubmitted keeps `code_version`
--   size, largest              bytes of the task (see lib/stored_bytes.lua), and bytes of the largest entry of its log
--   quota_account              account whose sum of stored bytes includes the task; set by sections

local FIELDS = {'state', 'at', 'version', 'run', 'seq', 'turn', 'attempt', 'size', 'largest', 'recorded_at',
  'has_message', 'phase', 'token', 'runner', 'cancel_requested', 'nonce', 'status', 'task_id',
  'scope', 'context', 'retention', 'settled', 'pauses', 'max_attempts', 'enabled_configs',
  'context_queue', 'claimed_at', 'run_without_events', 'queue', 'reply_channel', 'final_only', 'entered_at', 'quota_account',
  'journal_bytes', 'journal_origin', 'resumed_at', 'signal_bytes', 'has_messages', 'interrupt_requested', 'resumes',
  'code_version', 'claimed_version', 'journal_blobs', 'joined_indexes', 'packed', 'blobs'}

local NUMBERS = 10 -- the first ten of FIELDS are numbers
local SAVED = 17   -- save_record writes the first fields, of which `status` is the last

-- Values of fields that are absent from a record.
local DEFAULTS = {seq = 0, turn = 1, attempt = 1, has_message = '0', phase = '', token = '', runner = '',
  cancel_requested = '0', nonce = '', max_attempts = '1'}

-- Functions that return the keys of the lists of claimed and of queued runs, and the prefixes of the indexes of a task.
local DERIVED = {
  leases = function(prefix) return prefix .. ':leases' end,
  dispatch = function(prefix) return prefix .. ':dispatch' end,
  scope_index = function(prefix, r) return scope_index_of(prefix, r.scope) end,
  context_index = function(prefix, r) return context_index_of(prefix, r.scope, r.context) end,
}

-- Return the value of a field of DERIVED, and set the field, or return nil for any other field.
local function derived(keys, r, field)
  local derive = DERIVED[field]
  if not derive then return nil end
  r[field] = derive(prefix_of(keys), r)
  return r[field]
end

-- Give the table `r` of a new task the default values and the fields of DERIVED.
local function new_record(keys, r)
  return setmetatable(r, {__index = function(_, field) return DEFAULTS[field] or derived(keys, r, field) end})
end

-- Return the record as a table, or nil if the task does not exist. The table also has the fields of DERIVED. Large and
-- rarely used fields (request, caller …) are read on access, so that the cost of an append does not depend on the size of
-- the request. An absent field of FIELDS has its value in DEFAULTS, or is false.
local function load_record(keys)
  local values = redis.call('HMGET', keys.record, unpack(FIELDS))
  if not values[SAVED + 1] then return nil end
  local r = {stored = values}
  for i, field in ipairs(FIELDS) do
    r[field] = i <= NUMBERS and tonumber(values[i]) or values[i] or DEFAULTS[field] or false
  end
  r.recorded_at = r.recorded_at or r.at
  -- changes of this script
  r.cursors_scheduled, r.is_final, r.inline_entries, r.inline_bytes, r.size_growth = false, false, {}, 0, 0
  r.before_us = r.recorded_at -- time of the newest entry before this script
  return setmetatable(r, {__index = function(_, field)
    return derived(keys, r, field) or redis.call('HGET', keys.record, field) or nil
  end})
end

-- Return the time for a new log entry: the time of the server, or a later time if the previous entry is not earlier.
local function next_timestamp(r)
  return math.max(now(), (r.at or 0) + 1, (r.recorded_at or 0) + 1)
end

-- Write the fields that the script has changed. A field that is not stored and has its default value is not written. A
-- record that was packed lacks all fields with default values.
local function save_record(keys, r)
  count_growth(r)
  local stored, values = not r.packed and r.stored or {}, r.packed and {'packed', r.packed} or {}
  for i = 1, r.packed and SAVED - 1 or SAVED do
    local field = FIELDS[i]
    local value = r[field]
    local is_default = value == DEFAULTS[field] or field == 'recorded_at' and (value or 0) == r.at
    if i <= NUMBERS then value = micros(value or 0) end
    if value ~= stored[i] and (stored[i] or not is_default) then
      values[#values + 1], values[#values + 2] = field, value
    end
  end
  if values[1] then redis.call('HSET', keys.record, unpack(values)) end
end
