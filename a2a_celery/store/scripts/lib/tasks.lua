-- requires: keys, reminders, stored_bytes, time

-- Fields of a record. A field without a value is absent, unless stated otherwise.
--   task_id, scope, scope_index, context_index
--                              identity of the task and the prefixes of its indexes
--   agent, context, owner      as in the request
--   state, at, status, has_message
--                              current status: number, µs, the event that set it, '1' if the status has a message
--   entered_at                 µs at which the task entered its state, if that is before `at`
--   packed                     '1' if the task is packed, see lib/packed.lua; the record then lacks `status`
--                              and the fields that are set by derive_keys
--   version, recorded_at       number of the newest log entry, and the µs at which it was recorded ('0' for unknown)
--   run, phase, token, runner, seq
--                              newest run: number; 'queued', 'running', 'delegated' (delegated to a canvas), 'suspended'
--                              (until a time or a signal) or '' (over);
--                              token of its claim; its worker process; number of the events, steps and
--                              journal entries that it has written
--   turn, attempt              current turn, and the number of the run in the turn
--   max_attempts               runs that a turn may have, returned runs included; set by the claim
--   returned_run, uncounted_attempts
--                              newest run that a worker returned at its shutdown, and the number of claimed runs of the
--                              turn that were returned; they do not count against the agent's own limit
--   parent, depth, children    see lib/family.lua
--   request, caller            input of the run and its caller; deleted at the task's end. A dead letter keeps both until
--                              it is requeued
--   options                    JSON: options of the publish, '' for the agent's own; deleted with the request
--   begins_at, trace           not_before_us and the W3C traceparent of the options; absent without options. After the
--                              task's end, `trace` stays only if the task has webhooks
--   working_event, canceled_event
--                              WORKING event for the next claim; CANCELED event of a requested cancel. Both are deleted
--                              at the task's end
--   cancel_requested, cancel_requested_at
--                              '1' after a client requested the cancel; µs of the first request while a run was claimed
--   nonce                      value that detects a repeated call: the nonce of the last waiting message;
--                              'begun ' and the nonce of a message that started a run; 'canceled ', the nonce of a cancel,
--                              the run and the canvas that it ended
--   retention                  seconds for which the ended task is stored
--   settled                    token, version, state and next run of the last settlement that started a turn, or of the
--                              last suspension; the reply to a repeated call
--   retry_state                run, and the number of its retries by Celery: older copies of its message are dropped
--   canvas, canvases           JSON of the canvas that a delegated run waits for, and the key of the list of such runs
--   suspended, wait_signal     key of the list of suspended runs, and the name of the signal that a suspended run waits for
--                              ('' for a time only)
--   wait_key, wait_header, wait_timeout
--                              entry that ends the wait of a suspended run: its key in the journal, the bytes before the
--                              payload of the signal, and the entry if the time comes first
--   resumed_at, resumed_by     µs at which the newest run was queued after a suspension, and the id of the signal that
--                              queued it, as in signal_ids
--   signal_ids, signal_bytes   ids of the newest signals, quoted or, if they are long, as SHA-1, each followed by a space:
--                              a repeated id has no effect; bytes of the stored signals
--   republish_count            number of times that the newest run was published again
--   recorded_result            "<run> <retries> <digest>": newest state in the result backend of a run that a worker
--                              without this package executes; deleted at the task's end
--   claimed_at, worker         µs of the newest claim, and the worker's Celery node name ('' if events are off); `worker` is
--                              deleted at the task's end
--   run_without_events         newest run, if it has recorded steps but no event
--   prefetched                 "<run> <µs> <µs>": a worker has prefetched the run; µs at which the run is published again
--                              in any case, and µs at which its worker counts as lost
--   published_at               "<run> <µs>": the last confirmation of the broker, or the attempt of a watcher to publish
--   lost_processes             worker processes that were lost before they claimed the run, each followed by a space
--   ask_count                  number of answers that the agent's `ask` has received or waits for
--   interrupted_state          state before the message of the current turn, INPUT_REQUIRED if the task was not
--                              interrupted; absent in the first turn
--   turn_messages              index in the history of the message of the current turn, after those of the turns that led
--                              to it by a question of `ask`; absent in the first turn. Deleted with the request
--   read_messages              indexes in the history of the messages that these earlier turns have read
--   has_messages               '1' if a message was delivered to an open run; deleted at the task's end
--   interrupt_requested        run that a message of the client interrupts; deleted at the task's end
--   pause_timeout, pauses      event that ends an unanswered pause ('' if pauses have no timeout), and the key of the list of
--                              pauses; the event is deleted at the task's end
--   reminders, posted_reminders
--                              reminders of the open question (see lib/reminders.lua), and the number of posted ones;
--                              absent after the answer or the last reminder
--   answer_schema              JSON Schema of the answer to the open question; absent if any message answers it
--   requeued_as, requeued_from the task that a dead letter became; ids of the dead letters before this task, quoted, each
--                              followed by a space
--   enabled_configs            ids of the push-notification configs that receive events, quoted, each followed by a space;
--                              without those that were given up
--   deliveries, dead_deliveries
--                              keys of the lists of delivery cursors; present if the task has configs
--   leases, dispatch           keys of the lists of claimed and of queued runs
--   queue                      key of the agent's bounded queue; absent if the queue has no limit
--   reply_channel, final_only
--                              notification channel of the gateway that created the task; '1' if the channel receives
--                              final states only. Both are deleted at the task's end
--   context_queue, unblocked_at
--                              key of the queue of the context, if its runs are serialized, and the µs at which a run of the
--                              task last became its first
--   schedule_index, tick       prefix of the indexes of the schedule that created the task, and the µs of its tick; absent
--                              for other tasks
--   journal_bytes              bytes of the journal, keys included; absent without a journal
--   journal_blobs              folder of the journal's blobs in the folder of the task; absent without such blobs
--   journal_origin             id of the first dead letter before this task, if the task continues with its journal
--   code_version, claimed_version
--                              see lib/versions.lua. A dead letter keeps the first until it is requeued
--   size, largest              bytes of the task (see lib/stored_bytes.lua), and of the largest entry of its log
--   quota_account              account whose sum of stored bytes includes the task; absent without a limit of stored bytes

local FIELDS = {'state', 'at', 'version', 'run', 'seq', 'turn', 'attempt', 'size', 'largest', 'recorded_at', 'task_id',
  'scope', 'scope_index', 'context_index', 'context', 'status', 'has_message', 'phase', 'token', 'runner',
  'cancel_requested', 'nonce', 'retention', 'leases', 'dispatch', 'settled', 'pauses', 'max_attempts', 'enabled_configs',
  'context_queue', 'claimed_at', 'run_without_events', 'queue', 'reply_channel', 'final_only', 'entered_at', 'quota_account',
  'journal_bytes', 'journal_origin', 'resumed_at', 'signal_bytes', 'has_messages', 'interrupt_requested', 'parent',
  'code_version', 'claimed_version', 'journal_blobs', 'schedule_index', 'packed'}

local NUMBERS = 10 -- the first ten of FIELDS are numbers

-- Set the fields of a packed task that follow from its name.
local function derive_keys(keys, r)
  local prefix = string.match(keys[1], '^(.*):{') .. ':'
  r.leases, r.dispatch, r.scope_index = prefix .. 'leases', prefix .. 'dispatch', prefix .. 'tasks:' .. r.scope .. ':'
  r.context_index = prefix .. 'context:' .. r.scope .. ':' .. quoted(r.context) .. ':'
end

-- Return the record as a table, or nil if the task does not exist. Large and rarely used fields (request, caller …) are
-- read on access, so that the cost of an append does not depend on the request. An absent field of FIELDS is false.
local function load_record(keys)
  local values = redis.call('HMGET', keys[1], unpack(FIELDS))
  if not values[NUMBERS + 1] then return nil end
  local r = {}
  for i, field in ipairs(FIELDS) do r[field] = i <= NUMBERS and tonumber(values[i]) or values[i] end
  if r.packed then derive_keys(keys, r) end
  -- changes of this script
  r.deliveries_scheduled, r.is_final, r.inline_entries, r.inline_bytes, r.size_growth = false, false, {}, 0, 0
  r.before_us = r.recorded_at or 0 -- time of the entry before those of this script
  return setmetatable(r, {__index = function(_, field) return redis.call('HGET', keys[1], field) or nil end})
end

-- Return the time of a new entry: the server's time, but later than the entry before it.
local function next_timestamp(r)
  return math.max(now(), (r.at or 0) + 1, (r.recorded_at or 0) + 1)
end

local function end_pause(keys, r)
  if not r.pauses then return end
  redis.call('ZREM', r.pauses, task_tag(keys))
  cancel_reminders(keys, r)
end

-- Write the fields that a script may have changed.
local function save_record(keys, r)
  count_growth(r)
  redis.call('HSET', keys[1],
    'size', micros(r.size), 'largest', micros(r.largest), 'state', micros(r.state), 'at', micros(r.at),
    r.packed and 'packed' or 'status', r.packed or r.status, 'has_message', r.has_message,
    'version', micros(r.version), 'recorded_at', micros(r.recorded_at or 0), 'run', micros(r.run), 'phase', r.phase,
    'token', r.token, 'runner', r.runner,
    'seq', micros(r.seq), 'turn', micros(r.turn), 'attempt', micros(r.attempt),
    'cancel_requested', r.cancel_requested, 'nonce', r.nonce)
end
