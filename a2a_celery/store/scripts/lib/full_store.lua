-- At its memory limit (maxmemory with noeviction) Redis refuses the first command of a script that needs memory, unless
-- the script has already written: then Redis runs the whole script. Neither of these two commands changes a key,
-- because the key does not exist. DEL needs no memory; RPUSHX needs some. Redis 6.2 has no other way; the flags of a
-- script came with Redis 7.0.

-- Let Redis run the script at its memory limit. For scripts that need little memory or free some.
local function allow_on_full_store(key) redis.call('DEL', key .. ':none') end

-- Let Redis refuse the script at its memory limit, before the script has changed a key.
local function refuse_on_full_store(key) redis.call('RPUSHX', key .. ':none', '') end
