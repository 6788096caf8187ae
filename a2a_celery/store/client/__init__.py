"""Redis connections: run operations on an event loop or without one."""
