"""Delivery of events to webhooks, and posts that owners of webhooks request."""
