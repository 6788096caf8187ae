-- find_keys: search one page of the keyspace for a key with the prefix. Repeat the call until the cursor is 0.
-- returns {next cursor, '1' if there is such a key}

local page = redis.call('SCAN', cursor, 'COUNT', PAGE)
local first = prefix .. ':'
for _, key in ipairs(page[2]) do
  if string.sub(key, 1, #first) == first and key ~= installation then return {'0', '1'} end
end
return {page[1], ''}
