-- delete_task: everything of a task, at once.
-- KEYS  a task's ten
-- ARGV  [1] scope
-- gives 1, or 0 when there was no such task
local r = load(KEYS)
if not r or r.scope ~= ARGV[1] then return 0 end
close_run(r)
leave_row(KEYS, r, 0)
unlist(KEYS, r, r.state)
for _, artifact_id in ipairs(redis.call('LRANGE', KEYS[4], 0, -1)) do redis.call('DEL', KEYS[5] .. artifact_id) end
for _, config in ipairs(configs_of(KEYS)) do forget_config(KEYS, r, config, load_line(KEYS, config)) end
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7], KEYS[10])
wake(KEYS, r)
return 1
