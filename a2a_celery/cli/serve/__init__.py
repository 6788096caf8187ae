"""Commands that run a process of the fleet: a gateway or a watcher."""
