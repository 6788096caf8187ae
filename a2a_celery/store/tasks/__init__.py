"""Tasks: commands and their results, limits, ListTasks, schedules, signals, families and dead letters."""
