-- tagged: write a tag to the record of a new task.

-- Return {'forbidden', tag} for a tag that tasks must not have, or nil.
local function check(tagged)
  if tagged.tag == 'forbidden' then return {'forbidden', tagged.tag} end
end

local function accepted(tagged, _, record)
  redis.call('HSET', record, 'tag', tagged.tag)
end
