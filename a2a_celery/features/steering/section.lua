-- steering: messages that an agent has read while it worked. A section has no fields.
--
-- The section reads the field `read_messages` of the record, which the core writes: lib/incoming.lua adds the messages
-- that settle_run removes from the waiting messages, and lib/turns.lua deletes the field when a new turn begins.

-- Return {'read', indexes of the messages in the history, separated by spaces}.
local function claimed(steering, keys, r) return {'read', r.turn > 1 and r.read_messages or ''} end
