-- send_signal: deliver a signal to the suspended run that waits for it, and queue the run. If no run waits for the
-- signal, store it.
-- returns {'resumed', run, agent, options, '1' if the run is blocked} | {'stored'}; both even for a repeated call,
--       which has no effect
--       | {'missing'} | {'unreceived', agent} | {'ended', state} | {'full'}: too many signals are stored
--       | {'large'}: the task would be too large | {'limited', see lib/limits.lua} | the reply of a section
-- requires: context_queue, full_store, keys, limits, publication, signals, states, suspension, tasks, time

-- Maximum length of a stored id. The ids must be short, because the size of a task does not include them.
local MAX_ID = 40
local id = quoted(signal_id)
if #id > MAX_ID then id = redis.sha1hex(id) end

local function resumed(r) return {'resumed', micros(r.run), r.agent, r.options or '', is_blocked(keys, r) and '1' or '0'} end

-- Store the id of the signal, and remove the oldest ids.
local function remember(r)
  local ids, newest = {}, {}
  for known in string.gmatch((r.signal_ids or '') .. id, '%S+') do ids[#ids + 1] = known end
  for i = math.max(1, #ids - REMEMBERED_SIGNALS + 1), #ids do newest[#newest + 1] = ids[i] end
  redis.call('HSET', keys.record, 'signal_ids', table.concat(newest, ' ') .. ' ')
end

local r = load_record(keys)
if not r or (scope ~= '*' and r.scope ~= scope) then return {'missing'} end
for _, agent in ipairs(agents_without_signals) do
  if agent == r.agent then return {'unreceived', agent} end
end
if string.find(' ' .. (r.signal_ids or ''), ' ' .. id .. ' ', 1, true) then
  return r.phase == 'queued' and r.resumed_by == id and resumed(r) or {'stored'}
end
if TERMINAL[r.state] then return {'ended', micros(r.state)} end
if max_bytes and (r.size or 0) + #name + #payload > max_bytes then return {'large'} end
if is_nearly_full then return {'limited', 'memory', '0', micros(MEMORY_WAIT)} end
local exceeded = admit_sections(keys, r, #name + #payload, false)
if exceeded then return exceeded end
refuse_on_full_store(keys.record)
if r.phase == 'suspended' and r.wait_signal == name then
  remember(r)
  resume_run(keys, r, payload, FIRST_PUBLISH_GRACE_US)
  redis.call('HSET', keys.record, 'resumed_by', id)
  save_record(keys, r)
  return resumed(r)
end
if redis.call('LLEN', keys.signals) >= MAX_STORED_SIGNALS then return {'full'} end
remember(r)
push_signal(keys, r, struct.pack('>I4c0', #name, name) .. payload)
save_record(keys, r)
return {'stored'}
