"""App of `endings` and `plain_tasks` that logs the Celery signals that a user's receivers receive."""

from __future__ import annotations

import os
from typing import Any

from celery import signals

from tests.support.agents import endings, plain_tasks  # noqa: F401 - their agents
from tests.support.agents.basic import app  # noqa: F401 - the worker takes it from here

NAMES = ("prerun", "success", "failure", "retry", "revoked", "rejected", "unknown", "internal_error", "postrun")


def _log(name: str) -> None:
    def receive(
        sender: Any = None,
        task_id: str = "",
        id: str = "",
        request: Any = None,
        message: Any = None,
        state: str | None = None,
        **_: Any,
    ) -> None:
        header = message.headers.get("id") if message is not None else ""
        celery_id = task_id or id or getattr(request, "id", "") or header or sender.request.id
        with open(os.environ["TEST_SIGNALS"], "a", encoding="utf-8") as log:
            log.write(f"{celery_id} {name} {state}\n")

    getattr(signals, f"task_{name}").connect(receive, weak=False)


if "TEST_SIGNALS" in os.environ:
    for signal_name in NAMES:
        _log(signal_name)
