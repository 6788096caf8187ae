-- requires: journal, runs, time

-- Write the result of a wait to the journal. The entry consists of `header` and the payload of the signal. If `payload`
-- is nil, the entry is `timeout`.
local function record_wait(keys, r, key, header, payload, timeout)
  write_entry(keys, r, key, payload and header .. payload or timeout)
end

-- Queue the suspended run of a task. `payload` is the payload of the signal for which the run waits, or nil if the wait
-- has timed out. A watcher publishes the run after due_us, unless a worker has claimed it by then.
local function resume_run(keys, r, payload, due_us)
  redis.call('ZREM', r.suspended, run_name(r))
  record_wait(keys, r, r.wait_key, r.wait_header, payload, r.wait_timeout)
  r.phase = 'queued'
  redis.call('HSET', keys.record, 'resumed_at', micros(now()))
  redis.call('HDEL', keys.record, 'resumed_by', 'suspended', 'wait_signal', 'wait_key', 'wait_header', 'wait_timeout', 'republish_count',
    'prefetched', 'published_at', 'lost_processes')
  enter_queue(r)
  redis.call('ZADD', r.dispatch, micros(now() + due_us), run_name(r))
end
