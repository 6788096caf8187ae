"""App of `agents` with agents for large parts and an object store timeout of one second."""

from __future__ import annotations

from collections.abc import AsyncIterator

from a2a.types import Artifact, Part

from a2a_celery import Turn
from a2a_celery.execution.events import settlement
from tests.support.agents.basic import a2a, app

settlement.BLOB_TIMEOUT = 1.0

__all__ = ["app"]


@a2a.agent("mirror")
async def mirror(turn: Turn) -> AsyncIterator[Artifact | str]:
    """Return the parts of the message as an artifact, and list the part sizes of the related tasks' artifacts."""
    yield Artifact(artifact_id="given", parts=list(turn.message.parts))
    part_sizes = [
        len(part.SerializeToString()) for task in turn.related_tasks for a in task.artifacts for part in a.parts
    ]
    yield f"seen {part_sizes}"


@a2a.agent("make")
async def make(turn: Turn) -> Artifact:
    """Return a file with as many bytes as the message requests."""
    return Artifact(artifact_id="made", parts=[Part(raw=b"m" * int(turn.text), filename="made.bin")])
