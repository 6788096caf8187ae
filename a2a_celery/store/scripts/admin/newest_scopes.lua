-- newest_scopes: return the scopes with the newest tasks.
-- returns {scope, time of its newest status in µs, …}, newest status first

return redis.call('ZREVRANGE', scopes, 0, limit - 1, 'WITHSCORES')
