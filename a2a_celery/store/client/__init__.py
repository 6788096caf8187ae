"""Store clients with and without an event loop, and their Redis connections."""
