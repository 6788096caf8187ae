-- requires: stored_bytes, time

-- Return the time in µs at which a run with `options` may begin, or 0 if it may begin immediately or the options cannot
-- be read. RunOptions.to_json writes this field first, because the remaining options may be as large as the request.
local function begins_at(options)
  if not options then return 0 end
  local first = string.match(options, '^{"not_before_us":(%-?%d+)')
  if first then return tonumber(first) end
  if not string.find(options, '"not_before_us":', 1, true) then return 0 end
  local read, fields = pcall(cjson.decode, options)
  return read and fields.not_before_us or 0
end

-- Return the traceparent in the options of a run, or ''. RunOptions.to_json writes only not_before_us before it.
local function trace_of(options)
  local rest = string.gsub(options or '', '^{"not_before_us":%-?%d+,', '{', 1)
  return string.match(rest, '^{"trace":{"traceparent":"([%x-]+)"') or ''
end

-- Store the options of a run, and the options that are read often in separate fields.
local function set_options(record, options)
  if options == '' then
    redis.call('HDEL', record, 'options', 'begins_at', 'trace')
  else
    redis.call('HSET', record, 'options', options, 'begins_at', micros(begins_at(options)), 'trace', trace_of(options))
  end
end

-- Replace the options of a run, and count the change of their size.
local function replace_options(keys, r, options)
  if r.quota_account then add_size(r, #options - redis.call('HSTRLEN', keys.record, 'options')) end
  set_options(keys.record, options)
end

-- Return options without the latest start. RunOptions.to_json writes the latest start before the call, whose arguments
-- may have a key of the same name.
local function without_latest_start(options)
  local call = string.find(options, '"call":{"task":', 1, true) or #options + 1
  local head = string.gsub(string.sub(options, 1, call - 1), ',"not_after_us":%-?%d+', '', 1)
  head = string.gsub(head, '^{"not_after_us":%-?%d+,?', '{', 1)
  options = head .. string.sub(options, call)
  return options == '{}' and '' or options
end
