-- At its memory limit (maxmemory with noeviction), Redis refuses the first command of a script that needs memory. If
-- the script has already called a write command, Redis executes the whole script. The two functions below call a write
-- command on a key that does not exist, which changes nothing. Redis classifies DEL as a command that needs no memory,
-- and RPUSHX as one that needs memory. Redis 6.2 has no other means; the flags of scripts were added in Redis 7.0.

-- Allow the script at the memory limit of Redis. For scripts that need little memory or free memory.
local function allow_on_full_store(key) redis.call('DEL', key .. ':none') end

-- Let Redis refuse the script at its memory limit, before the script has changed a key.
local function refuse_on_full_store(key) redis.call('RPUSHX', key .. ':none', '') end
