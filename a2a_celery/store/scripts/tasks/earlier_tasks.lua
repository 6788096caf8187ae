-- earlier_tasks: return the SUBMITTED and WORKING tasks of earlier ticks of a schedule.
-- KEYS  none
-- ARGV  key prefix, prefix of the indexes of the schedule, time of the tick in µs
-- returns {id, context id, scope of each task}
-- requires: keys, states
local prefix, index, tick = ARGV[1], ARGV[2], tonumber(ARGV[3])

local reply = {}
for _, state in ipairs({SUBMITTED, WORKING}) do
  for _, tag in ipairs(redis.call('ZRANGE', index .. state, 0, -1)) do
    local task = redis.call('HMGET', keys_of(prefix, tag)[1], 'task_id', 'context', 'scope', 'tick')
    if task[1] and tonumber(task[4]) < tick then
      for i = 1, 3 do reply[#reply + 1] = task[i] end
    end
  end
end
return reply
