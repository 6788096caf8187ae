"""Webhooks: push-notification configs, and the state of their deliveries."""
