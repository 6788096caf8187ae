"""Acceptance of messages (validation, limits and new tasks) in gateways, workers and other processes."""
