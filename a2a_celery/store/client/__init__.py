"""Redis connections, which run operations with or without an event loop."""
