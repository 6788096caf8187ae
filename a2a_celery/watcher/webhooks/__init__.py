"""Delivery of events to webhooks, and of posts that the owners of webhooks request."""
