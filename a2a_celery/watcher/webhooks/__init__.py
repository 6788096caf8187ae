"""Delivery of events to webhooks, and the replays and test pings that owners of webhooks request."""
