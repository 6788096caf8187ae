-- defer_archiving: a task that the archive does not take holds up no other; it stays in the store. Called without a task, all of
-- them wait for the archive again.
-- KEYS  [1] archive  [2] archive refused
-- ARGV  [1] the tag of the task's keys, '' for none
-- returns how many wait again
-- requires: full_store
allow_on_full_store(KEYS[1])
if ARGV[1] ~= '' then
  local due = redis.call('ZSCORE', KEYS[1], ARGV[1])
  if due then redis.call('ZADD', KEYS[2], due, ARGV[1]) end
  redis.call('ZREM', KEYS[1], ARGV[1])
  return 0
end
local refused = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #refused, 2 do redis.call('ZADD', KEYS[1], refused[i + 1], refused[i]) end
redis.call('DEL', KEYS[2])
return #refused / 2
