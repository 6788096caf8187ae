"""Webhooks: push-notification configs, the deliveries of events to them, and replays.

``a2a_celery/push`` makes one post to one webhook. The position of a config in the log of its task is a cursor of the
core (``store/scripts/lib/cursors.lua``).
"""
