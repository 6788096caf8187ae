-- find_keys: whether there is a key with the prefix; some keys are looked at, so it is called until the cursor is 0.
-- KEYS  [1] installation
-- ARGV  [1] key prefix  [2] cursor  [3] about so many keys
-- returns {cursor of what follows, '1' if there is one}
local page = redis.call('SCAN', ARGV[2], 'COUNT', ARGV[3])
local first = ARGV[1] .. ':'
for _, key in ipairs(page[2]) do
  if string.sub(key, 1, #first) == first and key ~= KEYS[1] then return {'0', '1'} end
end
return {page[1], ''}
