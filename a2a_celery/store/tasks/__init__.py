"""Tasks: commands, their results, ListTasks, limits and dead letters."""
