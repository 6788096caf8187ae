-- set_schema: replace the schema of the store, if the stored schema is the previous schema. A store without a schema
-- also receives an archive cutoff, because an archive may already have tasks, for example of a store that was emptied.
-- returns the schema of the store
-- requires: time

local stored_schema = redis.call('HGET', installation, 'schema') or '0'
if stored_schema ~= previous_schema then return stored_schema end
redis.call('HSET', installation, 'schema', schema)
if previous_schema == '0' then redis.call('HSETNX', installation, 'border', micros(now())) end
return schema
