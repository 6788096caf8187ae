-- secrets_in_use: return the fingerprints of the secrets that seal stored data, and remove unused secrets.
-- returns {fingerprint, …}
-- requires: expiry

local used = {}
local known = redis.call('HGETALL', secrets)
for i = 1, #known, 2 do
  prune_expired(known[i + 1])
  if redis.call('EXISTS', known[i + 1]) == 1 then
    used[#used + 1] = known[i]
  else
    redis.call('HDEL', secrets, known[i])
  end
end
table.sort(used)
return used
