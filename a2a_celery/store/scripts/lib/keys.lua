-- requires: key_names

-- A script receives the keys of a task as a table, by the names of the fields of TaskKeys in store/keys.py. Scripts
-- derive further keys (chunks .. id, index .. state) from these keys or from fields of the record.

-- Percent-encode a text as one part of a key, like `quoted` in store/keys.py.
local function quoted(text)
  return (string.gsub(text, '[^A-Za-z0-9_.~@-]', function(c) return string.format('%%%02X', string.byte(c)) end))
end

-- Return the prefix of the keys of the deployment from the keys of a task.
local function prefix_of(keys) return string.match(keys.record, '^(.*):{') end

-- Return the key `name` of the deployment from the record of a task.
local function deployment_key(r, name) return (string.gsub(r.leases, 'leases$', name)) end

-- Return the prefix of the indexes of a scope, like `Keys.scope_index`.
local function scope_index_of(prefix, scope) return prefix .. ':tasks:' .. scope .. ':' end

-- Return the prefix of the indexes of a context, like `Keys.context_index`.
local function context_index_of(prefix, scope, context_id)
  return prefix .. ':context:' .. scope .. ':' .. quoted(context_id) .. ':'
end

-- Return the hash tag of the keys of a task. Indexes contain the tags of tasks.
local function task_tag(keys) return string.match(keys.record, '{(.-)}') end

-- Return the keys of the task with the tag `tag`, by name. Each key is built on access.
local function keys_of(prefix, tag)
  local stem = prefix .. ':{' .. tag .. '}:'
  return setmetatable({}, {__index = function(_, name) return stem .. KEY_NAMES[name] end})
end

-- Return the record of the run `name` (<task_id>.<run>), the id of its task, and its number as a string.
local function record_of_run(prefix, name)
  local task_id, run = string.match(name, '^(.*)%.(%d+)$')
  return prefix .. ':{' .. quoted(task_id) .. '}:task', task_id, run
end
