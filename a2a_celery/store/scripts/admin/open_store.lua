-- open_store: return the schema of the store, and whether ended tasks are archived, to a process that starts.
-- returns {schema ('' for none), '1' if ended tasks are archived}
-- requires: full_store

allow_on_full_store(installation)
local schema = redis.call('HGET', installation, 'schema') or ''
if schema == tostring(SCHEMA) and has_archive then redis.call('HSET', installation, 'archive', '1') end
return {schema, redis.call('HGET', installation, 'archive') or ''}
