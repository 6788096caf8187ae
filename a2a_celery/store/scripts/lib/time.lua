local function micros(n) return string.format('%.0f', n) end

local script_time

-- Return the µs since 1970 at which the script first asked for the time.
local function now()
  if not script_time then
    local t = redis.call('TIME')
    script_time = tonumber(t[1]) * 1000000 + tonumber(t[2])
  end
  return script_time
end
