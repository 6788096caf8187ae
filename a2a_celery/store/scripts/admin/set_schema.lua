-- set_schema: the store has another schema from now on, if it has the one that this was derived from.
-- KEYS  [1] installation
-- ARGV  [1] schema before, '' for none  [2] schema
-- returns the schema that it has then
local schema = redis.call('HGET', KEYS[1], 'schema') or ''
if schema ~= ARGV[1] then return schema end
redis.call('HSET', KEYS[1], 'schema', ARGV[2])
return ARGV[2]
