-- requires: time

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
  redis.call('HSET', record, 'options', options)
  if options == '' then
    redis.call('HDEL', record, 'begins_at', 'trace')
  else
    redis.call('HSET', record, 'begins_at', micros(begins_at(options)), 'trace', trace_of(options))
  end
end
