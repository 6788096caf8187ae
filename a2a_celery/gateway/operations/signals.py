"""Signals that clients send to their own tasks. The operation is not part of A2A."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from a2a.utils.errors import UnsupportedOperationError

from ...acceptance.errors import invalid
from ...agents import Agent
from ...dispatch import RunOptions
from ...lifecycle.signals import encode_payload, require_signal_id, require_signal_name
from ...settings import Settings
from ...store import AsyncStore, Keys, Scope
from ...store.tasks.results import Ended, Full, Limited, Missing, TooLarge
from ...store.tasks.signals import MAX_STORED_SIGNALS, SignalResumed, send_signal
from .limits import OwnerLimits
from .send_message import BackgroundPublisher
from .task_reader import TaskReader, closed_task_error

SIGNAL = "a2a_signal"
"""Key of a call context for the body of a signal request."""

FIELDS = {"name", "payload", "signalId", "tenant"}
"""Allowed fields in the body of a signal request. The binding reads `tenant`, and `Signals` ignores it."""


class Signals:
    """Operation that sends signals to the tasks of one agent."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        publisher: BackgroundPublisher,
        limits: OwnerLimits,
        task_reader: TaskReader,
    ) -> None:
        self._agent = agent
        self._max_bytes = settings.task_max_bytes
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._limits = limits
        self._task_reader = task_reader

    async def send(self, scope: Scope, task_id: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Send the signal in `body` to a task of `scope`.

        Returns:
            The id of the task, and whether a run waited for the signal.

        Raises:
            InvalidParamsError: The body is not a signal.
            TaskNotFoundError: `scope` has no such task.
            UnsupportedOperationError: The agent cannot wait for signals, the task has ended, or the task would store
                too many or too large signals.
            LimitExceededError: A limit of stored bytes is reached, or the store's memory is nearly full.
        """
        name, payload, signal_id = _signal(body)
        if self._agent.kind != "function":
            raise UnsupportedOperationError("This agent cannot wait for signals: only function agents can.")
        reply = await self._store.run(
            send_signal(
                self._keys,
                scope,
                task_id,
                name=name,
                payload=payload,
                signal_id=signal_id,
                limits=await self._limits.task_limits(),
                max_bytes=self._max_bytes,
            )
        )
        match reply:
            case Missing():
                raise await self._task_reader.closed_task_error(scope, task_id)
            case Ended(state):
                raise closed_task_error(task_id, state)
            case Full():
                raise UnsupportedOperationError(
                    f"{MAX_STORED_SIGNALS} signals wait for this task: send this signal again later",
                    data={"taskId": task_id},
                )
            case TooLarge():
                raise UnsupportedOperationError(
                    f"This signal would make the task larger than {self._max_bytes} bytes", data={"taskId": task_id}
                )
            case Limited():
                raise self._limits.limit_error(self._agent.name, reply)
            case SignalResumed(ref, agent, options, is_blocked) if not is_blocked:
                self._publisher.publish(agent, ref, RunOptions.from_json(options))
        return {"taskId": task_id, "resumed": isinstance(reply, SignalResumed)}


def _signal(body: Mapping[str, Any]) -> tuple[str, bytes, str]:
    """Return the name, the payload and the id of the signal in the body of a request.

    Raises:
        InvalidParamsError: A field is missing, unknown or invalid.
    """
    unknown = next((field for field in body if field not in FIELDS), None)
    if unknown is not None:
        raise invalid(str(unknown)[:64], "Unknown: a signal has name, payload and signalId.")
    with _field("name"):
        name = require_signal_name(body.get("name"))
    with _field("payload"):
        payload = encode_payload(body.get("payload"))
    with _field("signalId"):
        signal_id = require_signal_id(body.get("signalId", str(uuid4())))
    return name, payload, signal_id


@contextmanager
def _field(name: str) -> Iterator[None]:
    """Map a ValueError that is raised in the block to the error for an invalid field."""
    try:
        yield
    except ValueError as e:
        text = str(e)
        raise invalid(name, f"{text[:1].upper()}{text[1:]}.") from None
