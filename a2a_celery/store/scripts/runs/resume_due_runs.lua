-- resume_due_runs: queue suspended runs that are due. Their waits for a signal have timed out.
-- returns the names of the due runs, in order. Runs of missing tasks are removed from the list.
-- requires: full_store, keys, suspension, tasks, time

local due = redis.call('ZRANGEBYSCORE', suspended, '-inf', micros(now()), 'LIMIT', 0, limit)
if due[1] then refuse_on_full_store(suspended) end -- no worker could claim the runs
for _, name in ipairs(due) do
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  local keys = keys_of(prefix, quoted(task_id))
  local r = load_record(keys)
  if r and micros(r.run) == run and r.phase == 'suspended' then
    resume_run(keys, r, nil, 0)
    save_record(keys, r)
  else
    redis.call('ZREM', suspended, name)
  end
end
return due
