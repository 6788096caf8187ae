"""Conversion of the results of a function agent to events."""

from __future__ import annotations

from typing import Any

from a2a.types import Artifact, Message, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from ...lifecycle import is_terminal
from .turn import Turn


class Reply:
    """Conversion of returned and yielded values to artifacts. Yielded text and parts become chunks of one artifact."""

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self._artifact_id: str | None = None

    async def send_result(self, value: Any) -> None:
        """Send the return value of the agent. None sends no event.

        Raises:
            InputRequired: If the run has asked a question, which replaces the result.
        """
        await self._send(value, last=True)

    async def send_chunk(self, value: Any) -> None:
        """Send a yielded value as the next chunk; raises as `send_result`."""
        await self._send(value, last=False)

    def require_all_steps(self) -> None:
        """Check that the agent, which returns, has called all steps that an earlier run recorded.

        Raises:
            StepsChanged: Steps are missing.
        """
        self._turn.journal.require_all_called()

    async def end(self) -> None:
        """Complete the artifact of the yielded chunks, if there is one.

        Each chunk is sent when it is yielded. A chunk must have a part, so the completing chunk has an empty text.
        """
        if self._artifact_id is not None:
            await self._turn.artifact("", artifact_id=self._artifact_id, append=True, last=True)

    async def _send(self, value: Any, *, last: bool) -> None:
        self._turn.stop_if_asking()
        if last:
            self.require_all_steps()
        if value is None:
            return
        if isinstance(value, Artifact | Message | TaskStatusUpdateEvent | TaskArtifactUpdateEvent | Task):
            event = TaskArtifactUpdateEvent(artifact=value, last_chunk=True) if isinstance(value, Artifact) else value
            if isinstance(value, TaskStatusUpdateEvent) and is_terminal(value.status.state):
                await self.end()  # no event follows the end of the task
            await self._turn._events.enqueue_event(event)
            return
        chunks_id, send = self._artifact_id, self._turn.artifact
        is_next = chunks_id is not None
        self._artifact_id = await send(value, artifact_id=chunks_id, name="response", append=is_next, last=last)
