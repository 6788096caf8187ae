-- requires: time

-- Return a cursor as operators see it, without its config, see store/webhooks/deliveries.py.
local function delivery_row(r, config, line, due)
  return {
    r.task_id, config, r.agent, r.context, micros(line.delivered), micros(r.version), line.token and '1' or '0',
    micros(line.failures), line.first_failed_at or '', due or '', line.last_error or '', line.last_error_at or '',
    line.abandoned_at or '',
  }
end
