"""Test agents with the acknowledgement mode in BENCHMARK_ACKS: "early", "late" or "memory"."""

from __future__ import annotations

import os

from tests.support.agents import app

MODE = os.environ["BENCHMARK_ACKS"]
if MODE == "late":
    for name, task in app.tasks.items():
        task.acks_late = name.startswith("a2a.")
app.conf.a2a_ack_emulation = MODE != "memory"
