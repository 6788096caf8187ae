-- Nonces detect repeated calls. The field `nonce` has the nonce of the newest message, and `earlier_nonces` those of the
-- messages before it, newest first, each followed by a line break.

local EARLIER_NONCES = 20

-- Return the nonces of the newest messages, newest first.
local function nonces_of(keys, r)
  local nonces = {r.nonce}
  for nonce in string.gmatch(redis.call('HGET', keys.record, 'earlier_nonces') or '', '[^\n]+') do
    nonces[#nonces + 1] = nonce
  end
  return nonces
end

-- Set the nonce of the newest message. The caller saves the record.
local function set_nonce(keys, r, nonce)
  if r.nonce and r.nonce ~= '' then
    local nonces = nonces_of(keys, r)
    redis.call('HSET', keys.record, 'earlier_nonces', table.concat(nonces, '\n', 1, math.min(#nonces, EARLIER_NONCES)) .. '\n')
  end
  r.nonce = nonce
end
