-- tagged: write a tag to the record of a task, and list the task in the index of the tag.
-- requires: indexes

-- Return {'forbidden', tag} for a tag that tasks must not have, or nil.
local function check(tagged)
  if tagged.tag == 'forbidden' then return {'forbidden', tagged.tag} end
end

local function accepted(tagged, keys)
  redis.call('HSET', keys.record, 'tag', tagged.tag)
  join_index(keys, tagged.index_prefix)
end
