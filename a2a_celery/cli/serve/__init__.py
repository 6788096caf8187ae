"""Commands that run a process of the fleet: the gateway and the watcher."""
