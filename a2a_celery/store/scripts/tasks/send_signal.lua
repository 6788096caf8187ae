-- send_signal: deliver a signal to the suspended run that waits for it, and queue the run. If no run waits for the
-- signal, store it.
-- KEYS  keys of the task
-- ARGV  scope ('*' for any), name, payload, id of the signal, µs until a watcher publishes the run, maximum number of
--       stored signals, maximum number of stored ids, limits as in check_limits, maximum bytes of the task ('' for no
--       limit), names of agents that receive no signals, each between line breaks
-- returns {'resumed', run, agent, options, '1' if the run is blocked} | {'stored'}; both even for a repeated call,
--       which has no effect
--       | {'missing'} | {'unreceived', agent} | {'ended', state} | {'full'}: too many signals are stored
--       | {'large'}: the task would be too large | {'limited', see check_limits}
-- requires: context_queue, full_store, keys, limits, signals, states, suspension, tasks, time
local record, signals = KEYS[1], KEYS[12]
local scope, name, payload, id, due_us = ARGV[1], ARGV[2], ARGV[3], quoted(ARGV[4]), tonumber(ARGV[5])
local max_signals, max_ids, limits, max_bytes = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], ARGV[9]
local agents_without_signals = ARGV[10]

-- Maximum length of a stored id. The ids must be short, because the size of a task does not include them.
local MAX_ID = 40
if #id > MAX_ID then id = redis.sha1hex(id) end

local function resumed(r) return {'resumed', micros(r.run), r.agent, r.options or '', is_blocked(KEYS, r) and '1' or '0'} end

-- Store the id of the signal, and remove the oldest ids.
local function remember(r)
  local ids, newest = {}, {}
  for known in string.gmatch((r.signal_ids or '') .. id, '%S+') do ids[#ids + 1] = known end
  for i = math.max(1, #ids - max_ids + 1), #ids do newest[#newest + 1] = ids[i] end
  redis.call('HSET', record, 'signal_ids', table.concat(newest, ' ') .. ' ')
end

local r = load_record(KEYS)
if not r or (scope ~= '*' and r.scope ~= scope) then return {'missing'} end
if string.find(agents_without_signals, '\n' .. r.agent .. '\n', 1, true) then return {'unreceived', r.agent} end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if string.find(' ' .. (r.signal_ids or ''), ' ' .. id .. ' ', 1, true) then
  return r.phase == 'queued' and r.resumed_by == id and resumed(r) or {'stored'}
end
if max_bytes ~= '' and (r.size or 0) + #name + #payload > tonumber(max_bytes) then return {'large'} end
local exceeded = check_limits(KEYS, limits, 'waits', r.scope, #name + #payload)
if exceeded then return exceeded end
refuse_on_full_store(record)
if r.phase == 'suspended' and r.wait_signal == name then
  remember(r)
  resume_run(KEYS, r, payload, due_us)
  redis.call('HSET', record, 'resumed_by', id)
  save_record(KEYS, r)
  return resumed(r)
end
if redis.call('LLEN', signals) >= max_signals then return {'full'} end
remember(r)
push_signal(KEYS, r, struct.pack('>I4c0', #name, name) .. payload)
save_record(KEYS, r)
return {'stored'}
