-- requires: keys

-- Versions of an agent's code; see Agent.version. The journal of a task belongs to the version `code_version`. Workers
-- of this version execute the runs of the turn while such workers exist. If a worker of another version claims a run,
-- its version is `claimed_version`. When the run writes to the journal, the journal belongs to that version.

-- Add `change` to the number of open tasks of a version. The field is absent if the number is 0.
local function count_code_version_tasks(r, code_version, change)
  local metrics = deployment_key(r, 'metrics')
  local field = 'version ' .. string.match(r.scope, '^[^/]+') .. ' ' .. code_version
  if redis.call('HINCRBY', metrics, field, change) <= 0 then redis.call('HDEL', metrics, field) end
end

-- Set the version to which the journal belongs ('' for none).
local function set_code_version(keys, r, code_version)
  if r.code_version then count_code_version_tasks(r, r.code_version, -1) end
  redis.call('HDEL', keys.record, 'code_version', 'claimed_version')
  r.code_version, r.claimed_version = code_version ~= '' and code_version, false
  if code_version ~= '' then
    redis.call('HSET', keys.record, 'code_version', code_version)
    count_code_version_tasks(r, code_version, 1)
  end
end

-- Record the version of the worker that claims a run ('' for an agent without versions).
local function claim_code_version(keys, r, code_version)
  if not r.code_version then
    if code_version ~= '' then set_code_version(keys, r, code_version) end
  elseif code_version ~= r.code_version then
    redis.call('HSET', keys.record, 'claimed_version', code_version)
    r.claimed_version = code_version
  elseif r.claimed_version then
    redis.call('HDEL', keys.record, 'claimed_version')
    r.claimed_version = false
  end
end
