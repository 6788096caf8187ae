-- A script that refuses a call because of a limit returns {'limited', name of the limit, maximum, µs until a retry}.

-- µs after which a client should retry a message that was refused because the memory is nearly full.
local MEMORY_WAIT = 30000000

-- µs after which a client should retry a message that was refused because of a limit that the end of a run does not
-- change.
local LONG_WAIT = 60000000
