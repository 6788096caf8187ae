"""Acceptance of messages, which gateways, workers and other processes share: validation, limits and new tasks."""
