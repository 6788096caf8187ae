-- report_prefetched: record that a worker has prefetched runs. The runs are published again when the worker counts as
-- lost, or in any case some time after the first report.
-- returns nil. No effect on runs that are claimed, ended or unknown.
-- requires: full_store, keys, time

allow_on_full_store(dispatch)
local lost_at, republish_at = now() + silent_us, now() + delay_us
for _, name in ipairs(runs) do
  local record, _, run = record_of_run(prefix, name)
  local due = redis.call('ZSCORE', dispatch, name)
  if due then
    local prefetched_run, before = string.match(redis.call('HGET', record, 'prefetched') or '', '^(%d+) (%d+)')
    due = prefetched_run == run and tonumber(before) or math.max(tonumber(due), republish_at)
    redis.call('HSET', record, 'prefetched', run .. ' ' .. micros(due) .. ' ' .. micros(lost_at))
    redis.call('ZADD', dispatch, 'XX', micros(math.min(due, lost_at)), name)
  end
end
