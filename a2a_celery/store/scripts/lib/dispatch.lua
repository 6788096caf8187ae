-- requires: keys, metrics, options, runs, time

-- Queue a run. A watcher publishes the run at `due` (µs), unless another run of the context blocks it.
local function queue_run(keys, r, due)
  enter_queue(r)
  if r.context_queue and redis.call('RPUSH', r.context_queue, task_tag(keys)) > 1 then
    redis.call('ZADD', r.dispatch .. ':blocked', micros(now()), run_name(r))
  else
    redis.call('ZADD', r.dispatch, micros(due), run_name(r))
  end
end

-- Queue a closed run again, for retry number `retries`. A watcher publishes the run with `options` after delay_us,
-- unless a worker has claimed it by then.
local function queue_retry(keys, r, options, retries, delay_us)
  replace_options(keys, r, options)
  redis.call('HSET', keys.record, 'retry_state', micros(r.run) .. ' ' .. retries)
  redis.call('HDEL', keys.record, 'republish_count', 'prefetched', 'published_at', 'unreported_since', 'lost_processes')
  enter_queue(r)
  count_metric(r, 'retried', 'runs')
  redis.call('ZADD', r.dispatch, micros(now() + delay_us), run_name(r))
end
