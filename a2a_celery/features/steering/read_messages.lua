-- read_messages: return the messages that have arrived for a claimed run, in order. The task does not change.
-- returns {'messages', message events} | {'lost'}
-- requires: status, tasks

local r = load_record(keys)
if not r or r.run ~= run or r.token ~= token or r.phase ~= 'running' then return {'lost'} end
local messages = {}
for _, waiting in ipairs(redis.call('LRANGE', keys.turns, received, -1)) do
  local fields = unpack_waiting(waiting)
  if fields[7] ~= 'steer' then break end -- on_message was changed: this message begins a turn
  messages[#messages + 1] = fields[1]
end
return {'messages', messages}
