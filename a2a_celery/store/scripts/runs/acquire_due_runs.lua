-- acquire_due_runs: return queued runs that are due to be published, each to one watcher. The time until a run is due
-- again doubles with each publication.
-- returns {current time in µs, then for each run: task id, run, agent, options, time of its last publication in µs as
--       far as the queue may contain that message, time of its last publication in µs, time in µs since which no worker
--       reports it}. The first time is '' if the queue cannot contain the run's message, or if the run was published too
--       long ago. The second is '' if the run was not published, and 0 if the time is unknown. The third is '' unless
--       postpone_runs has recorded it. Runs of missing tasks are removed from the list.
-- requires: full_store, keys, options, time

local at = now()

-- Return the time of the last publication in µs if the queue may still contain its message, or ''. A run is published
-- regardless of its queue after the longest wait, after twice the longest wait, and so on, and if the store's clock was
-- set back to before the publication.
local function queued_since(run, prefetched, published, times)
  local prefetched_run, lost_at = string.match(prefetched or '', '^(%d+) %d+ (%d+)$')
  if prefetched_run == run and (tonumber(lost_at) <= at or times == 1) then return '' end -- a worker has fetched the message
  local published_run, published_us = string.match(published or '', '^(%d+) (%d+)$')
  if published_run ~= run or published_us == '0' then return '' end
  if tonumber(published_us) > at then return '' end
  return at - tonumber(published_us) < MAX_REDISPATCH_WAIT_US * 2 ^ (times - 1) and published_us or ''
end

-- Return the time in "<run> <µs>", or '' if the text is about another run.
local function time_of(text, run)
  local run_of_text, us = string.match(text or '', '^(%d+) (%d+)$')
  return run_of_text == run and us or ''
end

-- Return the time in "<run> <µs>", or '' also if the store's clock was set back to before that time.
local function valid_time_of(text, run)
  local us = tonumber(time_of(text, run))
  return us and us <= at and micros(us) or ''
end

refuse_on_full_store(dispatch) -- no worker could claim the runs
local due = redis.call('ZRANGEBYSCORE', dispatch, '-inf', micros(at), 'LIMIT', 0, limit)
local reply = {micros(at)}
for _, name in ipairs(due) do
  local record, task_id, run = record_of_run(prefix, name)
  local r = redis.call('HMGET', record, 'run', 'phase', 'agent', 'options', 'prefetched', 'published_at',
    'unreported_since')
  if r[1] == run and r[2] == 'queued' then
    redis.call('HDEL', record, 'prefetched')
    local times = redis.call('HINCRBY', record, 'republish_count', 1)
    redis.call('HSET', record, 'published_at', run .. ' ' .. micros(at))
    local wait = math.min(delay_us * 2 ^ (times - 1), MAX_REDISPATCH_WAIT_US)
    redis.call('ZADD', dispatch, micros(math.max(at, begins_at(r[4])) + wait), name)
    local queued = queued_since(run, r[5], r[6], times)
    for _, value in ipairs({task_id, run, r[3], r[4] or '', queued, time_of(r[6], run), valid_time_of(r[7], run)}) do
      reply[#reply + 1] = value
    end
  else
    redis.call('ZREM', dispatch, name)
  end
end
return reply
