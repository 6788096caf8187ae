"""Agent sessions. A session is opened when a run begins, and saved at checkpoints and at the end of the run."""

from __future__ import annotations

import asyncio
import json
from contextvars import ContextVar
from functools import cache
from typing import Any

from a2a.types import Message, Role, Task, TaskState

from ...crypto.sealing import FORM, NotSealedHere, Sealer, sealer_of
from ...errors import SessionConflict, SessionError
from ...execution.agents.running_agent import loop_method
from ...execution.events.queue import RunEventQueue
from ...execution.open_run import OpenRun
from ...lifecycle import is_interrupted
from ...lifecycle.json_values import json_bytes
from ...lifecycle.saved_json import require_text_keys
from ...lifecycle.states import COMPLETED, SUBMITTED
from ...settings import Settings
from ...store.runs.commands import EndRefused
from ...store.tasks.commands import list_tasks
from ...store.tasks.replies import Page
from ..feature import RunFeature
from .section import SavedSession, SavedSince, SessionSection, checkpoint

CURRENT: ContextVar[ContextSession | None] = ContextVar("a2a_celery_session", default=None)
"""Session of the current run, or None if its agent has no session."""

HISTORY_TASKS = 50
"""Maximum number of a context's tasks that `ContextSession.history` reads. Older tasks are omitted."""

HISTORY_MESSAGES = 200

MAX_STATE_BYTES = 1024 * 1024
"""Maximum size in bytes of the state of a session as JSON. The result of a durable step has the same limit."""

NEW = b"{}"
"""State of a session that was never saved."""


class ContextSession(RunFeature):
    """State of an agent for one context of its caller.

    Except for `state`, use a session only on the event loop of the run.

    Attributes:
        state: The state, a JSON object that the agent changes or replaces. The state is saved when the run completes or
            pauses.
        version: Number of times that the session has been saved.
        resumed: True if an earlier run for this message saved the state, for example a run that was lost with its
            worker.
    """

    def __init__(self, run: OpenRun, events: RunEventQueue) -> None:
        """Open the session that the claim returned.

        Raises:
            SessionError: The current `secret_key` cannot decrypt the session.
        """
        saved_session: SavedSession = run.claim.value_of(SessionSection)
        self._run = run
        self._events = events
        self._sealer = _sealer(run.settings)
        self._saving = asyncio.Lock()
        self._under_way: set[asyncio.Task[None]] = set()
        self._saved = self._open_state(saved_session.state) if saved_session.version else NEW
        self.state: dict[str, Any] = json.loads(self._saved)

        self.version = saved_session.version

        self.resumed = saved_session.resumed

    @loop_method
    async def checkpoint(self, state: dict[str, Any] | None = None) -> None:
        """Save the state after the events that the agent has sent so far.

        A run that replaces this run starts with the saved state.

        Args:
            state: The new state, or None for the current state of the session.

        Raises:
            SessionError: The state is not a JSON object or is too large. The session is unchanged.
            SessionConflict: Another run of the context has saved the session since this run began. The state is not
                saved.
            CancelledError: The run is lost.
        """
        save = asyncio.create_task(self._save(state), name=f"a2a-session-{self._run.claim.ref.name}")
        self._under_way.add(save)
        save.add_done_callback(self._under_way.discard)
        await asyncio.shield(save)  # the result of a cancelled save would be unknown
        if state is not None:
            self.state = state

    @loop_method
    async def history(self, limit: int = HISTORY_MESSAGES, *, artifacts: bool = True) -> list[Message]:
        """Return the newest messages of the context, oldest first, across its newest tasks.

        The last message is the current message. Messages whose turn has not begun are omitted.

        Args:
            limit: The maximum number of messages.
            artifacts: True to include the artifacts of the agent as messages.
        """
        run, claim = self._run, self._run.claim
        page = await run.execute(
            list_tasks(
                run.keys,
                claim.scope,
                retention=run.settings.retention,
                page_size=HISTORY_TASKS,
                context_id=claim.task.context_id,
                history_length=limit,
                artifacts=artifacts,
            )
        )
        tasks = page.tasks if isinstance(page, Page) else []
        own = next((task for task in tasks if task.id == claim.task.id), claim.task)
        others = [task for task in reversed(tasks) if task is not own]
        messages = [message for task in others for message in _messages_of(task, current=False)]
        messages += _messages_of(own, current=True)
        return messages[-limit:] if limit > 0 else []

    async def section_for_end(self, state: TaskState, refusal: EndRefused | None = None) -> SessionSection:
        """Return the session to save at the end of the run, after all checkpoints in progress, including checkpoints
        that no caller awaits; see `RunFeature`.

        Raises:
            SessionError: The state cannot be saved.
            SessionConflict: `refusal` is the version that another run has saved.
        """
        while self._under_way:
            await asyncio.wait(set(self._under_way))
        if isinstance(refusal, SavedSince):
            raise self._conflict(refusal)
        is_saved = state == COMPLETED or is_interrupted(state)
        return self._to_save(_encode_state(self.state) if is_saved else self._saved)

    def _conflict(self, since: SavedSince) -> SessionConflict:
        """Return the error for a state that is based on an older version than the saved version `since`."""
        return SessionConflict(
            f"another run saved the session of context {self._run.claim.task.context_id!r} after this run had read "
            f"version {self.version}: it is at {since.version}; one_run_per_context=True serializes the runs"
        )

    async def _save(self, state: dict[str, Any] | None) -> None:
        async with self._saving:
            text = _encode_state(self.state if state is None else state)
            if text == self._saved:
                return
            run, claim, sections = self._run, self._run.claim, [self._to_save(text)]
            await self._events.flush()
            reply: SavedSince | bool = await self._events.run_fenced(
                lambda confirmed: checkpoint(
                    run.keys, claim.ref, token=claim.token, confirmed=confirmed, sections=sections
                )
            )
            if isinstance(reply, SavedSince):
                raise self._conflict(reply)
            self._saved, self.version = text, self.version + 1

    def _to_save(self, text: bytes) -> SessionSection:
        """Return the session with a new state. If the state is saved already, only its lifetime is extended."""
        keys, claim = self._run.keys, self._run.claim
        if text == self._saved:
            return SessionSection.of(keys, self.version)
        if self._sealer is None:
            return SessionSection.of(keys, self.version, text)
        sealed_state = self._sealer.seal(text, "session", str(claim.scope), claim.task.context_id)
        return SessionSection.of(keys, self.version, sealed_state, self._sealer.fingerprint)

    def _open_state(self, content: bytes) -> bytes:
        if not content.startswith(FORM):
            return content
        context_id = self._run.claim.task.context_id
        problem = f"the session of context {context_id!r} cannot be opened"
        if self._sealer is None:
            raise SessionError(f"{problem}: a2a_secret_key is not set: use the secret that it was saved with")
        try:
            return self._sealer.open(content, "session", str(self._run.claim.scope), context_id)
        except NotSealedHere as e:
            raise SessionError(f"{problem}: {e}") from e


async def open_session(run: OpenRun, events: RunEventQueue) -> ContextSession:
    """Open the session of a run. `current_session` returns the session to the agent's code.

    Raises:
        SessionError: The current `secret_key` cannot decrypt the session.
    """
    session = ContextSession(run, events)
    CURRENT.set(session)
    return session


def current_session() -> ContextSession | None:
    """Return the session of the current run, or None outside a run or if the agent has no session."""
    return CURRENT.get()


@cache
def _sealer(settings: Settings) -> Sealer | None:
    return sealer_of(settings.secret_keys)


def _encode_state(state: Any) -> bytes:
    """Return `state` as JSON. A state that is read back is equal, except that tuples become lists.

    Raises:
        SessionError: The state cannot be serialized as JSON, or takes more than `MAX_STATE_BYTES`.
    """
    if not isinstance(state, dict):
        raise SessionError(f"a session's state is a dict, not {type(state).__name__}: store the value under a key")
    try:
        text = json_bytes(state)
    except (TypeError, ValueError, RecursionError) as e:
        raise SessionError(f"a session's state must be JSON, and this one is not: {e}") from e
    try:
        require_text_keys(state, "a session's state")
    except ValueError as e:
        raise SessionError(str(e)) from None
    if len(text) > MAX_STATE_BYTES:
        raise SessionError(
            f"a session's state may have {MAX_STATE_BYTES} bytes as JSON, and this one has {len(text)}: store large "
            "values elsewhere, and their names here"
        )
    return text


def _messages_of(task: Task, *, current: bool) -> list[Message]:
    """Return the messages of a task and its artifacts as messages.

    In the `current` task, the artifacts precede the current message. In other tasks, the artifacts precede the final
    message.
    """
    messages, last = list(task.history), []
    if current:
        at = next((n for n in range(len(messages) - 1, -1, -1) if messages[n].role == Role.ROLE_USER), len(messages))
        messages, last = messages[:at], messages[at:]
    elif task.status.state == SUBMITTED:
        del messages[-1:]  # the turn of the last message has not begun
    elif task.status.HasField("message"):
        last = [task.status.message]
    result = (
        Message(
            message_id=artifact.artifact_id,
            role=Role.ROLE_AGENT,
            parts=artifact.parts,
            task_id=task.id,
            context_id=task.context_id,
        )
        for artifact in task.artifacts
    )
    return [*messages, *result, *last]
