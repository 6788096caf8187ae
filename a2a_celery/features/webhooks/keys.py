"""Keys of the lists of delivery cursors. In lists, the name of a cursor is ``<tag of the task> <quoted config id>``."""

from __future__ import annotations

from ...store import Keys


def deliveries(keys: Keys) -> str:
    """Sorted set of the cursors with undelivered events, scored by the time at which the cursor is due.

    A deliverer removes a cursor when all its events are delivered.
    """
    return f"{keys.prefix}:deliveries"


def delivery_notifications(keys: Keys) -> str:
    """Pub/sub channel that notifies the watchers of delivery cursors and requested posts that are due now."""
    return f"{deliveries(keys)}:notifications"


def requested_posts(keys: Keys) -> str:
    """Sorted set of the cursors with requested posts, scored by the time at which the posts are due.

    A watcher removes a cursor when all its requested posts are sent.
    """
    return f"{deliveries(keys)}:requested"


def delivery_outcomes(keys: Keys) -> str:
    """Hash with the number of posts by outcome: delivered, failed and given_up. Permanent."""
    return f"{deliveries(keys)}:outcomes"


def dead_deliveries(keys: Keys) -> str:
    """Sorted set of the cursors whose delivery was given up, scored by the time at which the task expires, or +inf for
    a live task.

    The set expires with its newest member.
    """
    return f"{keys.prefix}:dead_deliveries"


def account_cursors(keys: Keys, account: str) -> str:
    """Sorted set of the cursors of an account's tasks, scored by the time at which the task expires, or +inf for a live
    task.

    The set exists only if `owner_max_webhooks` is set, and expires with its newest member.
    """
    return f"{keys.prefix}:webhooks:{account}"
