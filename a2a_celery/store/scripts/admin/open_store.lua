-- open_store: return the schema of the store, and whether ended tasks are archived, to a process that starts.
-- KEYS  installation
-- ARGV  schema of the caller's release, '1' if the caller has an archive. If the schemas are equal, an archive enables
--       archiving.
-- returns {schema ('' for none), '1' if ended tasks are archived}
-- requires: full_store
local installation = KEYS[1]
local own_schema, has_archive = ARGV[1], ARGV[2] == '1'

allow_on_full_store(installation)
local schema = redis.call('HGET', installation, 'schema') or ''
if schema == own_schema and has_archive then redis.call('HSET', installation, 'archive', '1') end
return {schema, redis.call('HGET', installation, 'archive') or ''}
