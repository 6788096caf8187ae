-- checkpoint: the state of a session, saved by a run that goes on; its task is not changed.
-- KEYS  a task's ten
-- ARGV  [1] run  [2] token of the claim  [3] how many events of this run are confirmed
--       [4…9] the session: what save_session takes
-- returns {'saved'}, also for a repeated call | {'lost', see missing_events} | {'conflict', version}: another run has saved it since
-- requires: runs, sessions, tasks
local r = load_record(KEYS)
if not r or r.run ~= tonumber(ARGV[1]) or r.token ~= ARGV[2] or r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, tonumber(ARGV[3]))
if missing then return {'lost', missing} end
local since = newer_version(4)
if since then
  local mine = redis.call('HGET', ARGV[4], 'token') == ARGV[2] and tonumber(since) == tonumber(ARGV[5]) + 1
  return {mine and 'saved' or 'conflict', since}
end
save_session(KEYS, r, 4)
return {'saved'}
