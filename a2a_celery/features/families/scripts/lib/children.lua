-- requires: cleanup

local ENDED_PARENTS = 'ended_parents' -- see ended_parents_key in child_canceller.py

-- Store the children of a task, which a watcher cancels if the task ends without a result.
local function save_children(keys, children)
  redis.call('HSET', keys.record, 'children', children, 'cleanup', ENDED_PARENTS)
end

-- Make a watcher cancel the children of a task that has ended.
local function cancel_children(keys) join_cleanup(keys, ENDED_PARENTS) end
