"""The agents of `endings` in workers whose runs cannot settle: only receivers of Celery's signals do."""

from __future__ import annotations

from typing import Any

from celery.worker.request import Request

from a2a_celery.execution.celery.request import RunRequest
from a2a_celery.execution.run import Run

from . import endings  # noqa: F401 - its agents
from .agents import app  # noqa: F401 - the worker takes it from here

for method in ("on_failure", "on_timeout", "terminate", "revoked"):
    setattr(RunRequest, method, getattr(Request, method))


async def _do_not_settle(self: Run, claim: Any, events: Any, outcome: Any) -> None:
    await events.abandon()
    raise RuntimeError("a secret")


setattr(Run, "_settle", _do_not_settle)  # noqa: B010
