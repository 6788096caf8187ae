"""Tasks: commands and their results, limits, ListTasks and signals."""
