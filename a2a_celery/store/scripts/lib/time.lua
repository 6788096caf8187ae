local function micros(n) return string.format('%.0f', n) end

local script_time

-- Return the current time in µs since 1970. The time does not change during the script.
local function now()
  if not script_time then
    local t = redis.call('TIME')
    script_time = tonumber(t[1]) * 1000000 + tonumber(t[2])
  end
  return script_time
end
