-- requires: time

-- Return a delivery for operators, without its config. See Delivery in store/webhooks/deliveries.py.
local function delivery_summary(r, config, cursor, due)
  return {
    r.task_id, config, r.agent, r.context, micros(cursor.delivered), micros(r.version), cursor.token and '1' or '0',
    micros(cursor.failures), cursor.first_failed_at or '', due or '', cursor.last_error or '', cursor.last_error_at or '',
    cursor.abandoned_at or '',
  }
end
