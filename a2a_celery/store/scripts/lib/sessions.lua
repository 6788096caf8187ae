-- requires: expiry, time

-- A session is a hash for each scope and context.
--   version, state       number of saves, and the newest state, sealed or in plain text
--   task, turn, token    task, turn and claim of the run that saved the session
--   secret               key of the list of values sealed with the same secret; absent if the state is in plain text
--   execution            newest steps of the task whose run saved the session last, separated by newlines
--
-- A script receives a session as a table with the fields of SessionArguments in store/runs/commands.py.

-- Return the stored version if another run has saved the session since, or nil. An expired session has no version.
local function newer_version(session)
  local version = session.state ~= '' and redis.call('HGET', session.key, 'version')
  return version and tonumber(version) ~= session.version and version or nil
end

-- Let an existing session expire after the task's retention plus `more_seconds` (nil for 0).
local function renew_session(r, session, more_seconds)
  local seconds = tonumber(r.retention) + (more_seconds or 0)
  if redis.call('EXPIRE', session, micros(seconds)) == 0 then return end
  local list = redis.call('HGET', session, 'secret')
  if list then
    redis.call('ZADD', list, micros(now() + seconds * 1000000), session)
    prune_expired(list)
  end
end

-- Number of saved steps, with which the execution history of a later run begins.
local SAVED_STEPS = 100

-- Save the session with the newest steps of the task, and extend its lifetime. If the state is unchanged, a session
-- that does not exist is not created.
local function save_session(keys, r, session)
  if session.state ~= '' then
    local known = redis.call('HGET', session.key, 'secret')
    if known and known ~= session.sealed_with then
      redis.call('ZREM', known, session.key)
      redis.call('HDEL', session.key, 'secret')
    end
    redis.call('HSET', session.key, 'version', micros(session.version + 1), 'state', session.state, 'task', r.task_id,
      'turn', micros(r.turn), 'token', r.token)
    if session.fingerprint ~= '' then
      redis.call('HSET', session.key, 'secret', session.sealed_with)
      redis.call('HSET', session.secrets, session.fingerprint, session.sealed_with)
    end
  end
  if redis.call('EXISTS', session.key) == 1 then
    redis.call('HSET', session.key, 'execution', table.concat(redis.call('LRANGE', keys.execution, -SAVED_STEPS, -1), '\n'))
  end
  renew_session(r, session.key)
end
