-- acquire_requested_posts: lease delivery cursors with requested posts to one watcher. A cursor is due again when its
-- lease ends.
-- returns {{ids of the posts, each followed by a space, then see describe_cursor}, …}. Missing cursors are removed from
--       the list.
-- requires: full_store, leases

allow_on_full_store(requested_posts)
return lease_deliveries(requested_posts, prefix, limit, lease_us, function(keys, r, config, cursor)
  local requested = redis.call('HGET', keys.cursors, config .. ':requested')
  return requested and {requested, unpack(describe_cursor(keys, r, config, cursor, 0))}
end)
