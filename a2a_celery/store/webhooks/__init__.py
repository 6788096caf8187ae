"""Webhooks: push-notification configs and the deliveries that are owed to them."""
