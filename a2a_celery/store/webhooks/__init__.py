"""Webhooks: push-notification configs and their deliveries."""
