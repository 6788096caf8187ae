-- read_memory: return the memory of the store's server.
-- returns {bytes that count toward maxmemory, maxmemory, '1' if the server refuses writes at the limit instead of
--       evicting keys}
--       | {}: the Redis user in store_url is not permitted to call INFO
-- requires: time

local info = redis.pcall('INFO', 'memory')
if type(info) == 'table' then return {} end
local function number(name) return tonumber(string.match(info, '\n' .. name .. ':(%d+)') or 0) end
return {
  micros(number('used_memory') - number('mem_not_counted_for_evict')), micros(number('maxmemory')),
  string.find(info, '\nmaxmemory_policy:noeviction', 1, true) and '1' or '0',
}
