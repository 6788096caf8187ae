"""Messages of schedules: validation, arguments for a scheduler's entry, and submission at a tick."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast, get_args

from a2a.types import SendMessageRequest
from a2a.utils.errors import InvalidAgentResponseError

from ...agents import Agent
from ...caller import Caller
from ...client.calling.content import message_of, to_portable
from ...errors import ConfigError
from ...lifecycle.events import jsonable, portable_metadata
from ...operations.errors import MAX_ID_LENGTH
from ...store.tasks.replies import Accepted
from ...submission import SubmissionProcess
from ...telemetry.logs import about
from ...telemetry.names import Action
from ...telemetry.tracing import trace_to_keep
from .section import HandledTick, Overlap, Tick, time_of_tick

logger = logging.getLogger(__name__)

MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class ScheduledMessage:
    """Message that is submitted at each tick of a schedule. The values of all fields are JSON-compatible."""

    schedule: str
    agent: str
    message: Any
    owner: str = ""
    tenant: str = ""
    context_id: str = ""
    metadata: Mapping[str, Any] | None = None
    extensions: Sequence[str] = ()
    overlap: str = "skip"
    window: float = 0.0

    @classmethod
    def of(
        cls, agents: Mapping[str, Agent], schedule: str, agent: str, message: Any, **options: Any
    ) -> ScheduledMessage:
        """Validate the values and return the message. An option that is None has its default value.

        Raises:
            ConfigError: A value is invalid, or `agents` has no such agent.
        """
        if agent not in agents:
            names = ", ".join(sorted(agents)) or "none"
            raise ConfigError(
                f"schedule {schedule!r}: no agent {agent!r} in this app; known: {names}. "
                "Define a schedule after its agent"
            )
        try:
            portable = to_portable(message)
            metadata = portable_metadata(jsonable(options.pop("metadata", None)))
        except (TypeError, InvalidAgentResponseError) as e:
            raise ConfigError(f"schedule {schedule!r}: {e}") from None
        fields = {name: value for name, value in options.items() if value is not None}
        scheduled_message = cls(schedule, agent, portable, metadata=metadata, **fields)
        scheduled_message._check()
        return scheduled_message

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of the Celery task as a JSON object. Except for `window`, arguments with default
        values are omitted."""
        defaults = {name: field.default for name, field in self.__dataclass_fields__.items()}
        fields = {**asdict(self), "extensions": list(self.extensions)}
        return {name: value for name, value in fields.items() if name == "window" or value not in (defaults[name], [])}

    def request(self, message_id: str) -> SendMessageRequest:
        """Return the request that a tick sends, with a message with the id `message_id`.

        Raises:
            TypeError: The content has a type that A2A cannot represent.
            ValueError: The content is empty or invalid.
        """
        message = message_of([self.message], message_id, "", self.context_id)
        return SendMessageRequest(message=message, tenant=self.tenant, metadata=self.metadata)

    @property
    def caller(self) -> Caller:
        """Caller on whose behalf the messages are submitted."""
        return Caller(self.owner, bool(self.owner), self.tenant, tuple(sorted(self.extensions)), trace_to_keep({}))

    def _check(self) -> None:
        def error(text: str) -> ConfigError:
            return ConfigError(f"schedule {self.schedule!r}: {text}")

        name = self.schedule
        if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not name.isprintable():
            raise error(f"a name has 1 to {MAX_NAME_LENGTH} characters, and no control characters")
        if self.overlap not in get_args(Overlap):
            raise error(f"overlap={self.overlap!r}: pass one of {', '.join(get_args(Overlap))}")
        for field in ("owner", "tenant", "context_id"):
            value = getattr(self, field)
            if not isinstance(value, str) or len(value) > MAX_ID_LENGTH:
                raise error(f"{field}={value!r}: pass a text of at most {MAX_ID_LENGTH} characters")
        if not isinstance(self.metadata, Mapping | None):
            raise error(f"metadata={self.metadata!r}: pass a dict")
        if not 0 <= self.window < float("inf"):
            raise error(f"window={self.window!r}: pass a number of seconds")
        try:
            request = self.request("id")
        except (TypeError, ValueError) as e:
            raise error(str(e)) from None
        if request.message.task_id:
            raise error("a tick creates a task: pass a message without a task id")


async def submit_tick(process: SubmissionProcess, scheduled_message: ScheduledMessage, at_us: int) -> dict[str, str]:
    """Submit the message of a tick. A repeated or concurrent call for the same tick creates no second task.

    Returns:
        A dict with "outcome" ("started", "skipped" or "repeated") and "task_id". The id is "" if the tick has no task.

    Raises:
        A2AError: The message is refused, for example because it exceeds a limit.
        StoreUnavailable: The store is unavailable. The call can be repeated.
    """
    tick = Tick(
        scheduled_message.schedule,
        at_us,
        round(scheduled_message.window * 1_000_000),
        cast(Overlap, scheduled_message.overlap),
    )
    task_id, tick_time = tick.task_id(process.keys), time_of_tick(at_us).isoformat()
    result = await process.submitter.create(
        scheduled_message.agent,
        scheduled_message.request(task_id),
        scheduled_message.caller,
        task_id,
        metadata=tick.metadata(),
        sections=[tick.section(process.keys, process.settings.retention)],
    )
    match result:
        case Accepted(task):
            logger.info("schedule %s: the tick at %s started the task %s", tick.schedule, tick_time, task.id)
            return {"outcome": "started", "task_id": task.id}
        case HandledTick("skipped"):
            logger.warning(
                "schedule %s: the tick at %s was skipped, because a task of the schedule runs",
                *(tick.schedule, tick_time),
                extra=about(Action.TICK_SKIPPED, agent=scheduled_message.agent),
            )
        case HandledTick():
            logger.info(
                "schedule %s: the tick at %s was handled before, task %s",
                *(tick.schedule, tick_time, result.task_id or "none"),
                extra=about(Action.TICK_REPEATED, agent=scheduled_message.agent),
            )
    assert isinstance(result, HandledTick), "a tick has its own message id"
    return {"outcome": result.outcome, "task_id": result.task_id}
