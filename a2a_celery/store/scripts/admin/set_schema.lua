-- set_schema: replace the schema of the store, if the stored schema is the previous schema.
-- KEYS  installation
-- ARGV  previous schema ('' for none), new schema
-- returns the schema of the store
local installation = KEYS[1]
local previous, new = ARGV[1], ARGV[2]

local schema = redis.call('HGET', installation, 'schema') or ''
if schema ~= previous then return schema end
redis.call('HSET', installation, 'schema', new)
return new
