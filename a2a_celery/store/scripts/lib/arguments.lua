-- Tables and lists are read one argument after the other, because their positions depend on the arguments before them.
-- The lines before a script set the position of the last argument that was read.
local argument_position = 0

-- Return the next argument.
local function argument()
  argument_position = argument_position + 1
  return ARGV[argument_position]
end

-- Return a list whose items `read` reads. The number of items is the next argument.
local function list_of(read)
  local items = {}
  for i = 1, tonumber(argument()) do items[i] = read() end
  return items
end

local function or_nil(text) return text ~= '' and text or nil end
