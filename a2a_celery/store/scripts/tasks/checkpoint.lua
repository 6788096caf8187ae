-- checkpoint: save the session of a run that continues. The task does not change.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of confirmed records of the run, and the session: the arguments of save_session
-- returns {'saved'}, even for a repeated call | {'lost', see missing_events}
--       | {'conflict', version}: another run has saved the session since
-- requires: runs, sessions, tasks
local run, token, confirmed, first_session = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), 4
local session, version = ARGV[4], tonumber(ARGV[5])

local r = load_record(KEYS)
if not r or r.run ~= run or r.token ~= token or r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, confirmed)
if missing then return {'lost', missing} end
local newer = newer_version(first_session)
if newer then
  local is_repeated = redis.call('HGET', session, 'token') == token and tonumber(newer) == version + 1
  return {is_repeated and 'saved' or 'conflict', newer}
end
save_session(KEYS, r, first_session)
return {'saved'}
