-- set_schema: replace the schema of the store, if the stored schema is the previous schema. A store without a schema
-- also receives an archive cutoff, because an archive may already have tasks, for example of a store that was emptied.
-- returns the schema of the store
-- requires: time

local schema = redis.call('HGET', installation, 'schema') or ''
if schema ~= previous then return schema end
redis.call('HSET', installation, 'schema', new)
if previous == '' then redis.call('HSETNX', installation, 'border', micros(now())) end
return new
