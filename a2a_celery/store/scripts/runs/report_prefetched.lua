-- report_prefetched: a worker has these runs in hand and has not begun them; should it fall silent, they are published again at
-- once. A busy worker keeps no run longer than a run waits that was just published.
-- KEYS  [1] dispatch  [2…] the record of each run's task
-- ARGV  [1] µs without a word after which they are due  [2] µs after which they are due anyway  then two for each run:
--       task id, run
-- returns nil; runs that are claimed, over or unknown are left alone
-- requires: full_store, time
allow_on_full_store(KEYS[1])
local silent_at, anyway = now() + tonumber(ARGV[1]), now() + tonumber(ARGV[2])
for i = 2, #KEYS do
  local at = 3 + (i - 2) * 2
  local name = ARGV[at] .. '.' .. ARGV[at + 1]
  local due = redis.call('ZSCORE', KEYS[1], name)
  if due then
    local run, before = string.match(redis.call('HGET', KEYS[i], 'prefetched') or '', '^(%d+) (%d+)')
    due = run == ARGV[at + 1] and tonumber(before) or math.max(tonumber(due), anyway)
    redis.call('HSET', KEYS[i], 'prefetched', ARGV[at + 1] .. ' ' .. micros(due) .. ' ' .. micros(silent_at))
    redis.call('ZADD', KEYS[1], 'XX', micros(math.min(due, silent_at)), name)
  end
end
