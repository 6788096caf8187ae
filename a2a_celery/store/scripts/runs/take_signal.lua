-- take_signal: move the oldest signal with a name to the journal of a claimed run. The state does not change.
-- returns {'recorded', entry}, even for a repeated call | {'none'}: there is no signal, and nothing was written
--       | {'lost', see missing_events}
-- requires: full_store, runs, signals, suspension, tasks

local r = load_record(keys)
if not r or r.run ~= run or r.token ~= token or r.phase ~= 'running' then return {'lost'} end
local missing = missing_events(keys, r, confirmed)
if missing then return {'lost', missing} end
local recorded = redis.call('HGET', keys.journal, received.subject) -- an unfinished entry is replaced
local is_repeated = recorded and (string.find(recorded, received.content, 1, true) == 1 or timeout and recorded == timeout.content)
if is_repeated then return {'recorded', recorded} end
allow_on_full_store(keys.record)
local payload = pop_signal(keys, r, signal)
if not payload and not timeout then return {'none'} end
record_wait(keys, r, received.subject, received.content, payload, timeout and timeout.content)
save_record(keys, r)
return {'recorded', redis.call('HGET', keys.journal, received.subject)}
