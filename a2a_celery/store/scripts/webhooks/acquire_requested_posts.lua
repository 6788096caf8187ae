-- acquire_requested_posts: lines whose owners requested posts, for one watcher; each is due again when its lease is over.
-- KEYS  [1] requested posts
-- ARGV  [1] key prefix  [2] at most this many  [3] lease, µs
-- returns {{ids of the posts, a space after each, then what acquire_due_deliveries gives}, …}; lines that are gone are forgotten
-- requires: full_store, leases
allow_on_full_store(KEYS[1])
return lease_deliveries(KEYS[1], ARGV[1], ARGV[2], ARGV[3], function(keys, r, config, line)
  local requested = redis.call('HGET', keys[9], config .. ':requested')
  return requested and {requested, unpack(leased_row(keys, r, config, line))}
end)
