"""Log of a task: reads, followers and notifications."""
