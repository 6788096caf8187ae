"""The app of `agents`. Its worker is killed with all its processes at the step KILLED_AT of the first run."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.signals import task_postrun, task_prerun, task_received

from .agents import a2a, app

__all__ = ["app"]

STEPS = {"fetched": task_received, "begun": task_prerun, "ended": task_postrun}
"""Celery signals for the steps of a run. The step "claimed" is between "begun" and "ended"."""


def kill(*_: Any, **options: Any) -> None:
    """Kill this worker as if its machine failed."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


step = os.environ.get("KILLED_AT", "")
if step == "claimed":
    a2a.before_run(kill)
elif step:
    STEPS[step].connect(kill, weak=False)
