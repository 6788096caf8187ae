-- hold_runs: a worker has these runs in hand and has not begun them; should it fall silent, they are published again at
-- once, and not when their time in the dispatch list comes. That time stays: a worker that is busy keeps no run longer.
-- KEYS  [1] dispatch  [2…] the record of each run's task
-- ARGV  [1] µs without a word after which they are due  then two for each run: task id, run
-- gives nil; runs that are claimed, over or unknown are left alone
local silent_at = now() + tonumber(ARGV[1])
for i = 2, #KEYS do
  local at = 2 + (i - 2) * 2
  local name = ARGV[at] .. '.' .. ARGV[at + 1]
  local due = redis.call('ZSCORE', KEYS[1], name)
  if due then
    local run, before = string.match(redis.call('HGET', KEYS[i], 'held') or '', '^(%d+) (%d+)')
    due = run == ARGV[at + 1] and before or micros(due)
    redis.call('HSET', KEYS[i], 'held', ARGV[at + 1] .. ' ' .. due .. ' ' .. micros(silent_at))
    redis.call('ZADD', KEYS[1], 'XX', micros(math.min(tonumber(due), silent_at)), name)
  end
end
