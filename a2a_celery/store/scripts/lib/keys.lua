-- The keys of a task are the first keys of a script, in this order:
--   KEYS[1] record  [2] log  [3] history  [4] artifacts  [5] chunks (prefix)  [6] metadata  [7] turns
--   [8] notifications  [9] push  [10] execution  [11] journal  [12] signals
-- Scripts derive further keys (chunks .. id, index .. state) from these keys or from fields of the record.

-- Percent-encode a text as one part of a key, like `quoted` in store/keys.py.
local function quoted(text)
  return (string.gsub(text, '[^A-Za-z0-9_.~@-]', function(c) return string.format('%%%02X', string.byte(c)) end))
end

-- Return the hash tag of the keys of a task. Indexes contain the tags of tasks.
local function task_tag(keys) return string.match(keys[1], '{(.-)}') end

local PARTS = {'task', 'log', 'history', 'artifacts', 'artifact:', 'metadata', 'turns', 'notifications', 'push', 'execution',
  'journal', 'signals'}

-- Return the twelve keys of the task with the tag `name`. Each key is built on access.
local function keys_of(prefix, name)
  local stem = prefix .. ':{' .. name .. '}:'
  return setmetatable({}, {__index = function(_, n) return stem .. PARTS[n] end})
end
