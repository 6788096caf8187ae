-- webhooks: save the push-notification config of a message. A section has the fields of ConfigSection in config_section.py.
-- requires: configs, tasks

local delivered = 0 -- version of the newest event before the message

local function admit(webhooks, keys, r)
  delivered = r.version or 0
  return refuse_config(keys, webhooks)
end

local function accepted(webhooks, keys) save_config(keys, load_record(keys), webhooks, delivered) end
