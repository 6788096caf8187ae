"""App of `agents` whose worker kills its process group at the step KILLED_AT of the first run."""

from __future__ import annotations

import os
import signal
from typing import Any

from celery.signals import task_postrun, task_prerun, task_received

from tests.support.agents.basic import a2a, app

__all__ = ["app"]

STEPS = {"fetched": task_received, "begun": task_prerun, "ended": task_postrun}
"""Celery signals for the steps of a run. The step "claimed", between "begun" and "ended", has no signal."""


def kill(*_: Any, **options: Any) -> None:
    """Kill the worker's process group, like a failure of the machine."""
    os.killpg(os.getpgid(0), signal.SIGKILL)


step = os.environ.get("KILLED_AT", "")
if step == "claimed":
    a2a.before_run(kill)
elif step:
    STEPS[step].connect(kill, weak=False)
