-- defer_archiving: set aside a task that the archive refused, so that the task does not delay other tasks. Without a
-- task, move all refused tasks back to the list of tasks for the archive. `task_id` is quoted.
-- returns the number of tasks that were moved back
-- requires: full_store

allow_on_full_store(archive)
if task_id then
  local due = redis.call('ZSCORE', archive, task_id)
  if due then redis.call('ZADD', archive_refused, due, task_id) end
  redis.call('ZREM', archive, task_id)
  return 0
end
local members = redis.call('ZRANGE', archive_refused, 0, -1, 'WITHSCORES')
for i = 1, #members, 2 do redis.call('ZADD', archive, members[i + 1], members[i]) end
redis.call('DEL', archive_refused)
return #members / 2
