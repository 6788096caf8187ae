-- remove_archived: remove archived tasks from the lists and the store, and advance the archive cutoff in the same step,
-- so that a reader of store and archive finds each task once. A task with undelivered events is removed from the
-- lists, and stays in the store for some time so that its events can be delivered.
-- `task_ids` are quoted.
-- returns the number of archived tasks
-- requires: deletion, indexes, keys, metrics, retirement, states, tasks, time

local function has_undelivered(keys, r)
  for id in string.gmatch(r.enabled_configs or '', '%S+') do
    if redis.call('ZSCORE', r.deliveries, task_tag(keys) .. ' ' .. id) then return true end
  end
  return false
end

local border, removed = tonumber(redis.call('HGET', installation, 'border') or '0'), 0
for _, tag in ipairs(task_ids) do
  local keys = keys_of(prefix, tag)
  local r = load_record(keys)
  if r and TERMINAL[r.state] and redis.call('ZREM', archive, tag) == 1 then
    removed, border = removed + 1, math.max(border, r.at)
    remove_from_indexes(keys, r, r.state)
    redis.call('ZREM', resubmittable, tag)
    count_metric(r, 'archived', 'tasks')
    if has_undelivered(keys, r) then
      if not r.packed then
        r.code_version = false -- an ended task does not count as an open task of its version
        delete_run_data(keys, r, {'code_version'})
      end
      r.retention = UNDELIVERED_RETENTION
      redis.call('HSET', keys.record, 'retention', UNDELIVERED_RETENTION, 'size', micros(r.size))
      expire_task(keys, r)
    else
      delete_task(keys, r)
    end
  end
end
if removed > 0 then redis.call('HSET', installation, 'border', micros(border)) end
return removed
