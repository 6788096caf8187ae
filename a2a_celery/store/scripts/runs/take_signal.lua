-- take_signal: move the oldest signal with a name to the journal of a claimed run. The state does not change.
-- KEYS  keys of the task
-- ARGV  run, token of its claim, number of confirmed records of the run, name of the signal, key and header of the
--       journal entry, and the entry to write if there is no signal ('' to write none), as in record_wait
-- returns {'recorded', entry}, even for a repeated call | {'none'}: there is no signal, and nothing was written
--       | {'lost', see missing_events}
-- requires: full_store, runs, signals, suspension, tasks
local record, journal = KEYS[1], KEYS[11]
local run, token, confirmed, name = tonumber(ARGV[1]), ARGV[2], tonumber(ARGV[3]), ARGV[4]
local key, header, timeout = ARGV[5], ARGV[6], ARGV[7]

local r = load_record(KEYS)
if not r or r.run ~= run or r.token ~= token or r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(KEYS, r, confirmed)
if missing then return {'lost', missing} end
local recorded = redis.call('HGET', journal, key) -- an unfinished entry is replaced
local is_repeated = recorded and (string.find(recorded, header, 1, true) == 1 or recorded == timeout)
if is_repeated then return {'recorded', recorded} end
allow_on_full_store(record)
local payload = pop_signal(KEYS, r, name)
if not payload and timeout == '' then return {'none'} end
record_wait(KEYS, r, key, header, payload, timeout)
save_record(KEYS, r)
return {'recorded', redis.call('HGET', journal, key)}
