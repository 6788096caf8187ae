-- report_prefetched: record that a worker has prefetched runs. The runs are published again when the worker counts as
-- lost, or in any case some time after the first report.
-- KEYS  list of queued runs, then the record of each run's task
-- ARGV  µs until the worker counts as lost, µs until the runs are published again in any case, then for each run: task
--       id, run
-- returns nil. No effect on runs that are claimed, ended or unknown.
-- requires: full_store, time
local dispatch, first_record = KEYS[1], 2
local lost_us, republish_us, first_run = tonumber(ARGV[1]), tonumber(ARGV[2]), 3

allow_on_full_store(dispatch)
local lost_at, republish_at = now() + lost_us, now() + republish_us
for i = first_record, #KEYS do
  local argument = first_run + (i - first_record) * 2
  local task_id, run = ARGV[argument], ARGV[argument + 1]
  local name = task_id .. '.' .. run
  local due = redis.call('ZSCORE', dispatch, name)
  if due then
    local prefetched_run, before = string.match(redis.call('HGET', KEYS[i], 'prefetched') or '', '^(%d+) (%d+)')
    due = prefetched_run == run and tonumber(before) or math.max(tonumber(due), republish_at)
    redis.call('HSET', KEYS[i], 'prefetched', run .. ' ' .. micros(due) .. ' ' .. micros(lost_at))
    redis.call('ZADD', dispatch, 'XX', micros(math.min(due, lost_at)), name)
  end
end
