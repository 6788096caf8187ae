-- requires: expiry, keys, time

-- A delivery cursor is the position of a push-notification config in the task's log. The log itself is the queue. The
-- config and its cursor are fields of the hash `cursors`, each with the prefix "<quoted config id>:".
--   sealed, secret             config, and the key of the list of cursors whose configs are sealed with the same secret
--   listed                     key of the list of the owner's cursors; absent without a limit
--   delivered                  version of the last delivered event
--   token                      token of the deliverer that has leased the cursor
--   settled                    token of the deliverer that last released the cursor, or nonce of the call that last
--                              replayed it, to detect a repeated call
--   failures, first_failed_at  failures since the last delivered event, and the time of the first in µs
--   last_error, last_error_at  JSON of the newest failure since the last delivered event, and its time in µs
--   abandoned_at               µs at which the delivery was given up
--   attempts                   number of recorded attempts
--   attempt:<number modulo MAX_ATTEMPTS>
--                              one of the newest attempts: "<µs> <µs of the next attempt, 0 for none> <JSON>"
--   requested                  ids of the requested posts that were not sent yet, each followed by a space
-- In lists, the name of a cursor is "<tag of its task> <quoted config id>".

local DELIVERY_FIELDS = {'sealed', 'secret', 'listed', 'delivered', 'token', 'settled', 'failures', 'first_failed_at', 'last_error',
  'last_error_at', 'abandoned_at'}

-- Return a cursor as a table, or nil if the config does not exist. `config` is the quoted id of the config.
local function load_delivery(keys, config)
  local fields = {}
  for i, field in ipairs(DELIVERY_FIELDS) do fields[i] = config .. ':' .. field end
  local values = redis.call('HMGET', keys.cursors, unpack(fields))
  if not values[1] then return nil end
  local cursor = {}
  for i, field in ipairs(DELIVERY_FIELDS) do cursor[field] = values[i] or nil end
  cursor.delivered, cursor.failures = tonumber(cursor.delivered), tonumber(cursor.failures or '0')
  return cursor
end

-- Set fields of a cursor. The arguments are pairs of name and value. The value false deletes a field.
local function update_delivery(keys, config, ...)
  local pairs_of = {...}
  for i = 1, #pairs_of, 2 do
    local field = config .. ':' .. pairs_of[i]
    if pairs_of[i + 1] then redis.call('HSET', keys.cursors, field, pairs_of[i + 1]) else redis.call('HDEL', keys.cursors, field) end
  end
end

-- Schedule the next delivery after_us after the time `at` (nil for now), if the log has undelivered events.
local function schedule_delivery(keys, r, config, delivered, after_us, at)
  if delivered < r.version then
    redis.call('ZADD', r.deliveries, micros((at or now()) + after_us), task_tag(keys) .. ' ' .. config)
    if after_us == 0 then redis.call('PUBLISH', r.deliveries .. ':notifications', '') end
  else
    redis.call('ZREM', r.deliveries, task_tag(keys) .. ' ' .. config)
  end
end

-- Count a post by its outcome.
local function count_outcome(r, outcome) redis.call('HINCRBY', r.deliveries .. ':outcomes', outcome, 1) end

-- Enable or disable the delivery of events to a config.
local function set_delivery_enabled(keys, r, config, is_enabled)
  local others = {}
  for other in string.gmatch(r.enabled_configs or '', '%S+') do
    if other ~= config then others[#others + 1] = other .. ' ' end
  end
  r.enabled_configs = table.concat(others) .. (is_enabled and config .. ' ' or '')
  redis.call('HSET', keys.record, 'enabled_configs', r.enabled_configs)
end

-- Schedule the undelivered events immediately, even if the delivery was given up. Return false if no delivery failed,
-- or if a deliverer has leased the cursor.
local function retry_delivery(keys, r, config, cursor, nonce)
  if cursor.abandoned_at then
    update_delivery(keys, config, 'abandoned_at', false, 'failures', false, 'first_failed_at', false, 'settled', nonce)
    set_delivery_enabled(keys, r, config, true)
    redis.call('ZREM', r.dead_deliveries, task_tag(keys) .. ' ' .. config)
    prune_expired(r.dead_deliveries)
  elseif not cursor.first_failed_at or cursor.token then
    return false
  end
  schedule_delivery(keys, r, config, cursor.delivered, 0)
  return true
end

-- Return the cursor if `token` still holds its lease. Otherwise, return nil, and true if `token` was the last token
-- that released the cursor.
local function leased_delivery(keys, config, token)
  local cursor = load_delivery(keys, config)
  if cursor and cursor.token == token then return cursor end
  return nil, cursor and cursor.settled == token
end

-- Return a delivery for operators, without its config. See Delivery in deliveries.py.
local function delivery_summary(r, config, cursor, due)
  return {
    r.task_id, config, r.agent, r.context, micros(cursor.delivered), micros(r.version), cursor.token and '1' or '0',
    micros(cursor.failures), cursor.first_failed_at or '', due or '', cursor.last_error or '', cursor.last_error_at or '',
    cursor.abandoned_at or '',
  }
end
