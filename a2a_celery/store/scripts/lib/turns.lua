-- requires: dispatch, journal, log, options, pauses, states, status, stored_bytes, tasks, time

-- Start the next turn, whose message is the entry `index` of the history: write the status, and assign the number of
-- the run. The caller queues the run. ask_count is '0' unless the message answers a question of the agent's `ask`. In
-- this case, the journal is kept.
local function start_turn(keys, r, index, state, status, request, caller, options, ask_count)
  local at = next_timestamp(r)
  append_entry(keys, r, at, status)
  set_status(keys, r, state, '0', status, at)
  if r.quota_account then add_size(r, #request + #caller + #options - size_of_request(keys)) end
  redis.call('HSET', keys.record, 'request', request, 'caller', caller)
  set_options(keys.record, options)
  redis.call('HDEL', keys.record, 'republish_count', 'max_attempts', 'uncounted_attempts', 'lost_processes')
  if ask_count == '0' then
    delete_journal(keys, r)
    redis.call('HDEL', keys.record, 'read_messages')
    redis.call('HSET', keys.record, 'turn_messages', micros(index))
  else
    redis.call('HSET', keys.record, 'turn_messages', (r.turn_messages or '0') .. ' ' .. micros(index))
  end
  r.run, r.turn, r.attempt, r.seq = r.run + 1, r.turn + 1, 1, 0
  r.phase, r.token, r.runner = 'queued', '', ''
end

-- Begin the next turn of an interrupted task: append the client's message, set SUBMITTED and queue a run. `message` and
-- `submitted` are encoded events. A watcher publishes the run after due_us.
local function begin_turn(keys, r, message, submitted, request, caller, options, due_us)
  end_pause(keys, r)
  append_client_message(keys, r, next_timestamp(r), message)
  redis.call('HSET', keys.record, 'interrupted_state', micros(r.state))
  local index = redis.call('LLEN', keys.history) - 1
  start_turn(keys, r, index, SUBMITTED, submitted, request, caller, options, r.ask_count or '0')
  queue_run(keys, r, now() + due_us)
end
