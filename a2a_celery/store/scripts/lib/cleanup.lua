-- requires: keys, states, time

-- The field `cleanup` of a record names a sorted set, <key prefix>:<cleanup>, scored by time in µs. The task joins the set
-- when it ends without a result, or when a message interrupts a turn, so that a role of the watcher removes what is left.
-- The record then has `interrupted_turn`, the number of the newest interrupted turn.

local function ends_without_result(state) return TERMINAL[state] and state ~= COMPLETED end

-- Add a task to the set that `cleanup` names, and notify the watchers.
local function join_cleanup(keys, cleanup)
  local set = prefix_of(keys) .. ':' .. cleanup
  redis.call('ZADD', set, micros(now()), task_tag(keys))
  redis.call('PUBLISH', set .. ':notifications', '')
end

-- Clean up after the current turn, which a message interrupts.
local function clean_up_turn(keys, r)
  if not r.cleanup then return end
  redis.call('HSET', keys.record, 'interrupted_turn', micros(r.turn))
  join_cleanup(keys, r.cleanup)
end
