-- open_store: a process begins: which schema the store has, and whether its ended tasks go to an archive.
-- KEYS  [1] installation
-- ARGV  [1] the schema this release knows  [2] '1' if the process has an archive: then ended tasks go there from now on
-- returns {schema ('' for none), '1' if ended tasks go to an archive}
-- requires: full_store
allow_on_full_store(KEYS[1])
local schema = redis.call('HGET', KEYS[1], 'schema') or ''
if schema == ARGV[1] and ARGV[2] == '1' then redis.call('HSET', KEYS[1], 'archive', '1') end
return {schema, redis.call('HGET', KEYS[1], 'archive') or ''}
