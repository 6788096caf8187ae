"""Tasks: commands and their results, limits, ListTasks, signals and families."""
