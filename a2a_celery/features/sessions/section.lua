-- sessions: state of an agent for a context. A section has the fields of SessionSection in section.py.
-- requires: expiry, keys, runs, time
--
-- A session is a hash for each scope and context.
--   version, state       number of saves, and the newest state, sealed or in plain text
--   task, turn, token    task, turn and claim of the run that saved the session
--   secret               key of the list of values sealed with the same secret; absent if the state is in plain text
--   execution            newest activities of the task whose run saved the session last, separated by newlines

local function session_key(r) return sessions.prefix .. r.scope .. ':' .. quoted(r.context) end

-- Return the stored version if another run has saved the session since, or nil. An expired session has no version.
local function newer_version(r)
  local version = sessions.state ~= '' and redis.call('HGET', session_key(r), 'version')
  return version and tonumber(version) ~= sessions.version and version or nil
end

-- Let an existing session expire after the task's retention plus `more_seconds` (nil for 0).
local function renew_session(r, more_seconds)
  local session, seconds = session_key(r), tonumber(r.retention) + (more_seconds or 0)
  if redis.call('EXPIRE', session, micros(seconds)) == 0 then return end
  local list = redis.call('HGET', session, 'secret')
  if list then
    redis.call('ZADD', list, micros(now() + seconds * 1000000), session)
    prune_expired(list)
  end
end

-- Save the session with the newest activities of the task, and extend its lifetime. If the state is unchanged, a session
-- that does not exist is not created.
local function save_session(keys, r)
  local session = session_key(r)
  if sessions.state ~= '' then
    local known = redis.call('HGET', session, 'secret')
    if known and known ~= sessions.sealed_with then
      redis.call('ZREM', known, session)
      redis.call('HDEL', session, 'secret')
    end
    redis.call('HSET', session, 'version', micros(sessions.version + 1), 'state', sessions.state, 'task', r.task_id,
      'turn', micros(r.turn), 'token', r.token)
    if sessions.fingerprint ~= '' then
      redis.call('HSET', session, 'secret', sessions.sealed_with)
      redis.call('HSET', sessions.secrets, sessions.fingerprint, sessions.sealed_with)
    end
  end
  if redis.call('EXISTS', session) == 1 then
    redis.call('HSET', session, 'execution', table.concat(newest_activities(keys), '\n'))
  end
  renew_session(r)
end

-- Return {'session', version, state, '1' if an earlier run of the same turn saved the session}. A session that was never
-- saved has the version '0'. The execution of a context continues with the activities of the session.
local function claimed(sessions, keys, r, earlier_activities)
  local version, state, task_id, turn, activities =
    unpack(redis.call('HMGET', session_key(r), 'version', 'state', 'task', 'turn', 'execution'))
  for activity in string.gmatch(earlier_activities and activities or '', '[^\n]+') do earlier_activities[#earlier_activities + 1] = activity end
  if not version then return {'session', '0', '', '0'} end
  renew_session(r) -- if this run is lost, the next attempt needs the session
  local is_own = task_id == r.task_id or
    string.find(' ' .. (r.requeued_from or ''), ' ' .. quoted(task_id) .. ' ', 1, true)
  return {'session', version, state, is_own and turn == micros(r.turn) and '1' or '0'}
end

-- Extend the lifetime of the session by the wait, because the next run needs the session.
local function suspended(sessions, keys, r, seconds) renew_session(r, seconds) end

-- Return {'conflict', version} if another run has saved the session since, or nil.
local function check(sessions, keys, r)
  r.section_bytes = r.section_bytes + #sessions.state
  local newer = newer_version(r)
  return newer and {'conflict', newer}
end

-- Save the session of a run that has succeeded. The session of any other run is saved if its state is unchanged.
local function ended(sessions, keys, r, has_succeeded)
  if sessions.state == '' or has_succeeded then save_session(keys, r) end
end

-- Save the session of a run that continues, and return the reply of checkpoint.lua.
local function checkpoint(sessions, keys, r)
  local newer = newer_version(r)
  if newer then
    local is_repeated = redis.call('HGET', session_key(r), 'token') == r.token and tonumber(newer) == sessions.version + 1
    return {is_repeated and 'saved' or 'conflict', newer}
  end
  save_session(keys, r)
  return {'saved'}
end
