-- requires: time

-- Return the accepted message with an id, as {digest, task id, record of the task, version, preceding turns}. Return
-- nil if there is no such message or its task does not exist. message_key is '' if ids are not checked.
local function find_accepted(message_key)
  if message_key == '' then return nil end
  local accepted = redis.call('HMGET', message_key, 'digest', 'task_id', 'record', 'version', 'preceding_turns')
  if not accepted[1] or redis.call('EXISTS', accepted[3]) == 0 then return nil end
  return accepted
end

local function remember_message(message_key, digest, window_ms, task_id, record, version, preceding_turns)
  if message_key == '' then return end
  redis.call('HSET', message_key,
    'digest', digest, 'task_id', task_id, 'record', record, 'version', micros(version), 'preceding_turns', micros(preceding_turns))
  redis.call('PEXPIRE', message_key, window_ms)
end
