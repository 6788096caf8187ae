-- secrets_in_use: with which secrets the configs are sealed that there are.
-- KEYS  [1] secrets
-- ARGV  none
-- returns {fingerprint, …}; those that no config is sealed with any more are forgotten
-- requires: expiry
local used = {}
local known = redis.call('HGETALL', KEYS[1])
for i = 1, #known, 2 do
  prune_expired(known[i + 1])
  if redis.call('EXISTS', known[i + 1]) == 1 then
    used[#used + 1] = known[i]
  else
    redis.call('HDEL', KEYS[1], known[i])
  end
end
table.sort(used)
return used
