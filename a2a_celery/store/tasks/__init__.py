"""Tasks: commands and their results, limits, ListTasks, signals, families and dead letters."""
