"""State of a worker process: event loop, leases, prefetched runs, forced stop and graceful shutdown."""
