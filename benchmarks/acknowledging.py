"""Test agents with the acknowledgement mode in BENCHMARK_ACKS: "early", "late" or "memory"."""

from __future__ import annotations

import os

from celery.signals import worker_init

from tests.support.agents.basic import app

MODE = os.environ["BENCHMARK_ACKS"]
app.conf.a2a_ack_emulation = MODE != "memory"


@worker_init.connect
def acknowledge_late(**_: object) -> None:
    """Let the runs of agents be acknowledged late. Their Celery tasks exist only in a worker."""
    if MODE == "late":
        for name, task in app.tasks.items():
            task.acks_late = name.startswith("a2a.")
