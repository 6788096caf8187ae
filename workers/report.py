"""Agent with recorded steps: after the loss of a worker, the next attempt begins at the step that was interrupted."""

import asyncio
import os

from a2a_celery import Turn

from .app import a2a

STEPS = ("search", "read", "compare", "write")
SECONDS = 2.0
"""Duration of a step."""


@a2a.agent("report", description="Writes a report in four recorded steps.", max_attempts=3)
async def report(turn: Turn) -> str:
    async def work(name: str) -> str:
        await turn.say(f"{name} …")
        await asyncio.sleep(SECONDS)
        return f"{name}: process {os.getpid()}"

    return "\n".join([await turn.step(name, work, name) for name in STEPS])
