-- mark_published: record that the broker has the messages of runs, so that watchers publish them only later. No
-- effect on a claimed run, or on a run that has been retried since. A prefetched run is due when its worker counts as
-- lost.
-- returns nil
-- requires: full_store, keys, time
-- Return true if the run of `record` has been retried more often than in its message.

local function is_retried(record, run, retries)
  local retried_run, recorded_retries = string.match(redis.call('HGET', record, 'retry_state') or '', '^(%d+) (%d+)$')
  return retried_run == run and tonumber(recorded_retries) > retries
end

allow_on_full_store(dispatch)
for _, published in ipairs(runs) do
  local name = published.name
  local record, _, run = record_of_run(prefix, name)
  if redis.call('ZSCORE', dispatch, name) and not is_retried(record, run, published.retries) then
    local due = now() + published.delay_us
    local prefetched_run, republish_at, lost_at = string.match(redis.call('HGET', record, 'prefetched') or '', '^(%d+) (%d+) (%d+)$')
    redis.call('HSET', record, 'published_at', run .. ' ' .. micros(now()))
    if prefetched_run == run then
      due = math.max(due, tonumber(republish_at))
      redis.call('HSET', record, 'prefetched', run .. ' ' .. micros(due) .. ' ' .. lost_at)
      due = math.min(due, tonumber(lost_at))
    end
    redis.call('ZADD', dispatch, 'XX', micros(due), name)
  end
end
