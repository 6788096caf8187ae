-- requires: dispatch, journal, log, options, states, status, stored_bytes, tasks, time

-- Begin the next turn: append the client's message, set SUBMITTED and queue a run. Without a question of `ask`, the
-- message is no answer, and the journal is deleted. `message` and `submitted` are
-- encoded events; a watcher publishes the run after due_us.
local function begin_turn(keys, r, message, submitted, request, caller, options, due_us)
  end_pause(keys, r)
  if (r.ask_count or '0') == '0' then delete_journal(keys, r) end
  append_client_message(keys, r, next_timestamp(r), message)
  redis.call('HSET', keys[1], 'interrupted_state', micros(r.state))
  local at = next_timestamp(r)
  append_entry(keys, r, at, submitted)
  set_status(keys, r, SUBMITTED, '0', submitted, at)
  r.run, r.turn, r.attempt, r.seq = r.run + 1, r.turn + 1, 1, 0
  r.phase, r.token, r.runner = 'queued', '', ''
  if r.quota_account then add_size(r, #request + #caller + #options - size_of_request(keys)) end
  redis.call('HSET', keys[1], 'request', request, 'caller', caller)
  set_options(keys[1], options)
  redis.call('HDEL', keys[1], 'republish_count', 'uncounted_attempts', 'lost_processes', 'answer_schema')
  queue_run(keys, r, at + due_us)
end
