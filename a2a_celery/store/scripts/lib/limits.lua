-- requires: deliveries, time

-- A script that refuses a call because of a limit returns {'limited', name of the limit, maximum, µs until a retry}.

-- µs after which a client should retry a message that was refused because the memory is nearly full.
local MEMORY_WAIT = 30000000

-- µs after which a client should retry a message that was refused because of a limit that the end of a run does not
-- change.
local LONG_WAIT = 60000000

-- Return {'limited', …} if `config` (nil for none) is new and its owner has reached the limit of webhooks, or nil.
local function exceeded_webhooks(keys, config)
  if not config or config.listed == '' or load_delivery(keys, config.id) then return nil end
  local maximum = tonumber(config.max_listed)
  if redis.call('ZCOUNT', config.listed, '(' .. micros(now()), '+inf') < maximum then return nil end
  return {'limited', 'webhooks', micros(maximum), micros(LONG_WAIT)}
end
