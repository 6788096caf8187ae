"""A task's log: read it, follow it, receive its notifications."""
