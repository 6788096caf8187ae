-- acquire_due_runs: return queued runs that are due to be published, each to one watcher. The time until a run is due
-- again doubles with each publication.
-- KEYS  list of queued runs
-- ARGV  key prefix, maximum number of runs, µs until the first repeated publication, maximum µs between two
--       publications
-- returns {current time in µs, then for each run: task id, run, agent, options, time of its last publication in µs, '1'
--       if it was published before}. The time is '' if the queue cannot contain the run's message, or if the run was
--       published too long ago. Runs of missing tasks are removed from the list.
-- requires: full_store, keys, options, time
local dispatch = KEYS[1]
local prefix, limit, first_wait, longest_wait = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])

local at = now()
local clock_set_at = tonumber(redis.call('HGET', prefix .. ':installation', 'clock_set_at') or '0')

-- Return the time of the last publication in µs if the queue may still contain its message, or ''. A run is published
-- regardless of its queue after the longest wait, after twice the longest wait, and so on, and once after the store's
-- clock was set.
local function queued_since(run, prefetched, published, times)
  local prefetched_run, lost_at = string.match(prefetched or '', '^(%d+) %d+ (%d+)$')
  if prefetched_run == run and (tonumber(lost_at) <= at or times == 1) then return '' end -- a worker has fetched the message
  local published_run, published_us = string.match(published or '', '^(%d+) (%d+)$')
  if published_run ~= run or published_us == '0' then return '' end
  if tonumber(published_us) > at or tonumber(published_us) < clock_set_at then return '' end
  return at - tonumber(published_us) < longest_wait * 2 ^ (times - 1) and published_us or ''
end

refuse_on_full_store(dispatch) -- no worker could claim the runs
local due = redis.call('ZRANGEBYSCORE', dispatch, '-inf', micros(at), 'LIMIT', 0, limit)
local reply = {micros(at)}
for _, name in ipairs(due) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local record = prefix .. ':{' .. quoted(task_id) .. '}:task'
  local r = redis.call('HMGET', record, 'run', 'phase', 'agent', 'options', 'prefetched', 'published_at')
  if r[1] == run and r[2] == 'queued' then
    redis.call('HDEL', record, 'prefetched')
    local times = redis.call('HINCRBY', record, 'republish_count', 1)
    redis.call('HSET', record, 'published_at', run .. ' ' .. micros(at))
    local wait = math.min(first_wait * 2 ^ (times - 1), longest_wait)
    redis.call('ZADD', dispatch, micros(math.max(at, begins_at(r[4])) + wait), name)
    local was_published = string.match(r[6] or '', '^(%d+) ') == run and '1' or '0'
    for _, value in ipairs({task_id, run, r[3], r[4] or '', queued_since(run, r[5], r[6], times), was_published}) do
      reply[#reply + 1] = value
    end
  else
    redis.call('ZREM', dispatch, name)
  end
end
return reply
