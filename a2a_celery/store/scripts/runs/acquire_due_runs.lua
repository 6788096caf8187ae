-- acquire_due_runs: runs that no worker claimed in time, for one watcher; each is due again later, twice as late each time.
-- KEYS  [1] dispatch
-- ARGV  [1] key prefix  [2] at most this many  [3] µs to the next time, the first of them  [4] µs, the longest
-- returns {now, then for each run: task id, run, agent, options, µs of its last publish}; the latter is '' for a run that its
--       queue cannot hold, or that was published too long ago; runs of tasks that are gone are forgotten
-- requires: full_store, keys, options, time

local at = now()
local clock_set_at = tonumber(redis.call('HGET', ARGV[1] .. ':installation', 'clock_set_at') or '0')

-- Return when the run was last published if its queue may still hold it, else ''. A run is published regardless of its
-- queue after the longest time, then after twice that, and so on; and once if the store's clock was set since.
local function in_queue_since(run, held, published, times)
  local held_run, silent_at = string.match(held or '', '^(%d+) %d+ (%d+)$')
  if held_run == run and (tonumber(silent_at) <= at or times == 1) then return '' end -- a worker has fetched the message
  local published_run, published_us = string.match(published or '', '^(%d+) (%d+)$')
  if published_run ~= run then return '' end
  if tonumber(published_us) > at or tonumber(published_us) < clock_set_at then return '' end
  return at - tonumber(published_us) < tonumber(ARGV[4]) * 2 ^ (times - 1) and published_us or ''
end

refuse_on_full_store(KEYS[1]) -- no worker could claim them
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', micros(at), 'LIMIT', 0, tonumber(ARGV[2]))
local taken = {micros(at)}
for _, name in ipairs(due) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local record = ARGV[1] .. ':{' .. quoted(task_id) .. '}:task'
  local r = redis.call('HMGET', record, 'run', 'phase', 'agent', 'options', 'prefetched', 'published_at')
  if r[1] == run and r[2] == 'queued' then
    redis.call('HDEL', record, 'prefetched')
    local times = redis.call('HINCRBY', record, 'republish_count', 1)
    redis.call('HSET', record, 'published_at', run .. ' ' .. micros(at))
    local wait = math.min(tonumber(ARGV[3]) * 2 ^ (times - 1), tonumber(ARGV[4]))
    redis.call('ZADD', KEYS[1], micros(math.max(at, begins_at(r[4])) + wait), name)
    for _, value in ipairs({task_id, run, r[3], r[4] or '', in_queue_since(run, r[5], r[6], times)}) do
      taken[#taken + 1] = value
    end
  else
    redis.call('ZREM', KEYS[1], name)
  end
end
return taken
