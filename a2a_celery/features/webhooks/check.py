"""Check of ``a2a doctor``: webhooks whose deliveries fail, or were given up."""

from __future__ import annotations

from ...cli.doctor.findings import Findings, all_ok, matching, note
from ...store import Keys, SyncStore
from ...store.admin.start_check import secrets_in_use
from .deliveries import deliveries


def check_webhooks(store: SyncStore, keys: Keys) -> Findings:
    """Yield the findings about the deliveries to webhooks."""
    failing = sum(delivery.state == "failing" for delivery in deliveries(store, keys))
    dead = sum(delivery.state == "dead" for delivery in deliveries(store, keys, dead=True))
    return delivery_findings(failing, dead, is_used=bool(store.run(secrets_in_use(keys))))


def delivery_findings(failing: int, dead: int, *, is_used: bool) -> Findings:
    """Yield the findings for the numbers of webhooks whose last post failed, and of those that were given up."""
    commands = "a2a deliveries list --dead shows the reason; a2a deliveries replay --all posts the missed events"
    yield from matching(
        "webhooks",
        (note, failing, f"{failing} failing now: celery -A … a2a deliveries shows the reason."),
        (note, dead, f"{dead} given up: celery -A … {commands}."),
        (all_ok, is_used, "no webhook fails, and no delivery was given up"),
    )
