-- idempotency: accept each message only once. A section has the fields of IdempotencyKey in section.py.
-- requires: time

-- Return {'known', task id, version, preceding turns} for a message that was accepted before, {'conflict'} if another
-- message has the same id, or nil. A message is forgotten if its task does not exist.
local function check(idempotency)
  local digest, task_id, record, version, preceding_turns =
    unpack(redis.call('HMGET', idempotency.key, 'digest', 'task_id', 'record', 'version', 'preceding_turns'))
  if not digest or redis.call('EXISTS', record) == 0 then return nil end
  if digest ~= idempotency.digest then return {'conflict'} end
  return {'known', task_id, version, preceding_turns}
end

-- Remember an accepted message, whose turn begins after `version` of the log and after `preceding_turns` waiting turns.
local function accepted(idempotency, keys, task_id, version, preceding_turns)
  redis.call('HSET', idempotency.key, 'digest', idempotency.digest, 'task_id', task_id, 'record', keys.record,
    'version', micros(version), 'preceding_turns', micros(preceding_turns))
  redis.call('PEXPIRE', idempotency.key, idempotency.window_ms)
end
