"""Checks of the broker and of its acknowledgement timeout."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf

from .survey import Finding, Survey, note, ok, wrong


def broker(survey: Survey) -> Iterator[Finding]:
    """Check that the broker accepts connections and does not evict messages."""
    server = survey.broker
    if isinstance(server, str):
        yield wrong("broker", f"{server}. Tasks wait in the store: see CELERY_BROKER_URL.")
        return
    yield ok("broker", f"reached: {server}" if str(server) else "reached")
    is_store = not isinstance(survey.store, str) and survey.store.identity.startswith(f"{server.identity}/")
    if server.evicts not in ("", "noeviction") and server.max_memory and not is_store:
        yield wrong(
            "broker",
            f"maxmemory-policy is {server.evicts}: Redis may evict messages, which a watcher then "
            "publishes again. Set noeviction.",
        )


def timeouts(survey: Survey) -> Iterator[Finding]:
    """Compare the broker's acknowledgement timeout with the agents' time limits."""
    server = survey.broker
    if isinstance(server, str) or server.ack_timeout is None:
        return
    rabbit = server.kind == "RabbitMQ"
    name = "consumer_timeout" if rabbit else "visibility timeout"
    limit = f"{name} ({server.ack_timeout:g} s{', unless it was changed' if rabbit else ''})"
    names = [
        agent for agent, work in survey.work.items() if work.late and _outlasts(work.limit or inf, server.ack_timeout)
    ]
    long = [
        agent
        for agent, work in survey.work.items()
        if not work.late and _outlasts(work.limit or 0.0, server.ack_timeout)
    ]
    if names and rabbit:
        yield wrong(
            "timeouts",
            f"workers acknowledge runs of {', '.join(names)} when they end, which may take longer than the broker's "
            f"{limit}: the broker then closes the worker's channel. Give the agents a time_limit below this timeout, "
            "or raise the timeout.",
        )
    elif names:
        yield note(
            "timeouts",
            f"workers acknowledge runs of {', '.join(names)} when they end, which may take longer than the broker's "
            f"{limit}: the broker then redelivers the runs, and workers drop the copies. Give the agents a time_limit "
            "below this timeout, or raise the timeout in broker_transport_options.",
        )
    if long:
        effect = "closes the worker's channel" if rabbit else "redelivers the message"
        yield note(
            "timeouts",
            f"runs of {', '.join(long)} may take longer than the broker's {limit}: a prefetched message waits until "
            f"the worker's earlier runs end, and the broker {effect}. Give the agents a separate queue with "
            "worker_prefetch_multiplier = 1, or raise the timeout.",
        )
    if not (names or long):
        yield ok("timeouts", f"no agent has a time limit beyond the broker's {limit}")


def _outlasts(limit: float, ack_timeout: float) -> bool:
    return limit > ack_timeout
