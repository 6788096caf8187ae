"""Creation of tasks: the stored form of the client's first message, its idempotency key, and the options and the Celery
message of its run."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import sha256
from typing import Any, TypeVar
from uuid import uuid4

from a2a.types import Message, SendMessageConfiguration, SendMessageRequest
from a2a.utils.errors import A2AError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from ..agents import Agent
from ..caller import Caller
from ..child_tasks import parent_named_in, remove_parent
from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import BadCall, Call, CallSignature, Publisher, RunOptions
from ..errors import ConfigError
from ..settings import Settings
from ..store import Keys, Operation, Scope
from ..store.client.redis_clients import database_of
from ..store.runs.commands import RunRef
from ..store.tasks.commands import BrokerMessage, IdempotencyKey, ReplyChannel, TaskLimits, create_task
from ..store.tasks.family import MAX_DEPTH, Parent
from ..store.tasks.results import Conflict, Created, NotCreated, TaskIdConflict, TooDeep, WaitsForItself
from ..store.tasks.schedules import Tick
from ..store.webhooks.push_configs import NewPushConfig
from ..telemetry.tracing import trace_to_keep
from .errors import MAX_ID_LENGTH, invalid

SCHEDULE = "celery_schedule"
"""Key of the message's schedule in the request's metadata."""

TIMES = ("not_before", "not_after")

END_OF_TIMES = 9000
"""Year from which times are refused. Watchers and workers add durations to the times, and convert them to local time,
and Python's times end with the year 9999."""

LARGE_REQUEST = 1 << 16
"""Size in bytes above which a request is encoded in a thread."""

T = TypeVar("T")


def run_options(agent: Agent, request: SendMessageRequest, caller: Caller, call: Call | None = None) -> RunOptions:
    """Return the options with which to publish the run for `request`.

    Args:
        agent: Agent that receives the request.
        request: Request with the ids of its task and context.
        caller: Caller of the request.
        call: Call to the agent's plain Celery task, or None for any other kind of agent.

    Raises:
        InvalidParamsError: The client's schedule is invalid, or the agent does not allow schedules.
        Exception: The agent's route has raised this exception. Invalid options from the route cause a TypeError or
            ValueError.
    """
    now = SYSTEM_CLOCK.now()
    times = _times(agent, request, now)
    route: Any = {}
    if agent.route is not None:
        request_copy = SendMessageRequest()
        request_copy.CopyFrom(request)  # a route may change its argument, so it gets a copy
        route = agent.route(request_copy, caller)
    trace = trace_to_keep(caller.headers)
    return RunOptions.of(route, times.get("not_before"), times.get("not_after"), now, call, trace)


def _times(agent: Agent, request: SendMessageRequest, now: datetime) -> dict[str, datetime]:
    field = f"metadata.{SCHEDULE}"
    if SCHEDULE not in request.metadata.fields:
        return {}
    if not agent.scheduling:
        raise invalid(field, "This agent does not let clients schedule messages.")
    schedule = MessageToDict(request.metadata)[SCHEDULE]
    if not isinstance(schedule, dict) or not schedule or set(schedule) - set(TIMES):
        raise invalid(field, f"An object with {' or '.join(TIMES)}, or both.")
    times = {name: _time(f"{field}.{name}", value) for name, value in schedule.items()}
    earliest = times.get("not_before", datetime.min.replace(tzinfo=UTC))
    # with an idempotency window, the message may repeat an accepted message, whose times may be in the past by now
    if agent.idempotency_window is None:
        earliest = max(now, earliest)
    if times.get("not_after", datetime.max.replace(tzinfo=UTC)) <= earliest:
        raise invalid(f"{field}.not_after", "A time in the future, and after not_before.")
    return times


def _time(field: str, value: Any) -> datetime:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None and time.year < END_OF_TIMES:
            return time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    text = f"An ISO 8601 time before the year {END_OF_TIMES} with an offset from UTC, such as 2030-01-01T08:00:00Z."
    raise invalid(field, text)


class BrokerMessages:
    """Factory of the Celery messages that the store pushes to the broker.

    With `store_wait_replicas`, scripts do not push Celery messages, because a client's message is accepted only after
    replicas have confirmed it.
    """

    def __init__(self, publisher: Publisher, settings: Settings, clock: Clock = SYSTEM_CLOCK) -> None:
        self._publisher = publisher
        self._settings = settings
        self._clock = clock
        self.is_enabled = settings.publish_on_accept and not settings.store_wait_replicas

    @cached_property
    def _database(self) -> int:
        return database_of(self._settings.store_url)

    def of(self, agent: str, ref: RunRef, options: RunOptions) -> BrokerMessage | None:
        """Return the Celery message of a run, or None if the caller must publish the run after the client's message is
        stored."""
        if not self.is_enabled:
            return None
        message = self._publisher.prepare(agent, ref.task_id, ref.run, options)
        if message is None:
            return None
        return BrokerMessage(
            ref.name,
            message.server,
            message.database,
            self._database,
            message.queue,
            message.body,
            message.event_channel,
            message.event,
            options.republish_in(self._clock.now(), self._settings),
        )

    def record_refusal(self) -> None:
        """Stop preparing messages for some seconds, because the store has accepted a run but could not push the run's
        message."""
        self._publisher.preparer.suspend()


@dataclass(frozen=True, slots=True)
class NewTask:
    """Task to create.

    Attributes:
        create: Function that returns the operation that creates the task; see `built`.
        options: Options of the task's first run.
        has_message: True if the operation also pushes the Celery message of the run.
    """

    create: Callable[[], Operation[Created | NotCreated]]
    options: RunOptions
    has_message: bool = False


async def built(request: SendMessageRequest, operation: Callable[[], Operation[T]]) -> Operation[T]:
    """Return the store operation that the function `operation` builds.

    The function encodes `request`. A large request is encoded in a thread, so that the event loop can serve other
    requests.
    """
    return operation() if request.ByteSize() <= LARGE_REQUEST else await asyncio.to_thread(operation)


class NewTasks:
    """Factory of the new tasks of one agent.

    Raises:
        ConfigError: The agent's `idempotency_window` is longer than tasks are stored.
    """

    def __init__(self, agent: Agent, settings: Settings, keys: Keys) -> None:
        if agent.idempotency_window is not None and agent.idempotency_window > settings.retention:
            raise ConfigError(
                f"agent {agent.name!r}: idempotency_window = {agent.idempotency_window:g}: at most a2a_retention, "
                f"{settings.retention} seconds, because a repeated message returns the stored task"
            )
        self._agent = agent
        self._settings = settings
        self._keys = keys
        self._signature = CallSignature.of(agent.code) if agent.kind == "task" else None

    @property
    def is_call(self) -> bool:
        """True if the agent is a plain Celery task, which is called with all of the client's messages."""
        return self._signature is not None

    def of(
        self,
        params: SendMessageRequest,
        caller: Caller,
        scope: Scope,
        task_id: str,
        *,
        limits: TaskLimits | None,
        push: NewPushConfig | None = None,
        reply_channel: ReplyChannel | None = None,
        messages: BrokerMessages | None = None,
        tick: Tick | None = None,
        is_awaited: bool = False,
    ) -> NewTask:
        """Return the new task for a message without a task id.

        Raises:
            InvalidParamsError: The message is not a valid call to the agent's Celery task, or its schedule is invalid
                or not allowed.
            Exception: The agent's route has raised this exception.
        """
        request = with_ids(params, scope.tenant, task_id, params.message.context_id or str(uuid4()))
        options = run_options(self._agent, request, caller, self.call_of([request.message]))
        parent_id, cancels = parent_named_in(request.message)
        message = None if messages is None else messages.of(self._agent.name, RunRef(task_id, 1), options)
        create = partial(
            create_task,
            self._keys,
            scope,
            task_id,
            request.message.context_id,
            request,
            caller=caller.to_json(),
            retention=self._settings.retention,
            options=options.to_json(),
            idempotency_key=idempotency_key(self._agent, params),
            push=push,
            serialize_context=self._agent.serialize_context,
            limits=limits,
            reply_channel=reply_channel,
            parent=Parent(parent_id, cancels, is_awaited) if 0 < len(parent_id) <= MAX_ID_LENGTH else None,
            message=message,
            tick=tick,
        )
        return NewTask(create, options, message is not None)

    def call_of(self, messages: list[Message]) -> Call | None:
        """Return the call to the agent's plain Celery task with `messages`, or None for any other kind of agent.

        Raises:
            InvalidParamsError: The messages are not a valid call.
        """
        if self._signature is None:
            return None
        try:
            return Call(self._agent.code.name, self._signature.call(messages))
        except BadCall as e:
            raise invalid("message.parts", str(e)) from None

    def refusal(self, answer: Conflict | TooDeep | WaitsForItself | TaskIdConflict) -> A2AError:
        """Return the error for a message that creates no task."""
        if isinstance(answer, TooDeep):
            return UnsupportedOperationError(
                f"The parent task has {MAX_DEPTH} ancestors, the maximum: agents may call each other in a cycle"
            )
        if isinstance(answer, WaitsForItself):
            return UnsupportedOperationError(
                "The task would wait for itself: a task that waits for it keeps its place in the context, which "
                "executes one run at a time; pass another context id, or none"
            )
        if isinstance(answer, TaskIdConflict):
            return invalid("task_id", "A task of another agent, tenant or owner has this id: pass another id.")
        return invalid(
            "message.message_id",
            f"Another message had this id within the last {self._agent.idempotency_window:g} seconds: send a new id.",
        )


def with_ids(params: SendMessageRequest, tenant: str, task_id: str, context_id: str) -> SendMessageRequest:
    """Return the request in the form in which it is stored and passed to the agent's route.

    The result contains the validated tenant, and its message contains the task id and the context id. The push
    notification config is removed, because it may contain secrets.
    """
    request = SendMessageRequest()
    request.CopyFrom(params)
    request.tenant = tenant
    request.configuration.ClearField("task_push_notification_config")
    request.message.task_id = task_id
    request.message.context_id = context_id
    return request


def idempotency_key(agent: Agent, params: SendMessageRequest) -> IdempotencyKey | None:
    """Return the idempotency key of the client's unchanged request, or None if the agent has no
    `idempotency_window`."""
    if agent.idempotency_window is None:
        return None
    return IdempotencyKey(params.message.message_id, message_digest(params), int(agent.idempotency_window * 1000))


def message_digest(params: SendMessageRequest) -> str:
    """Return a digest that is equal for two requests if and only if they ask for the same work. The digest does not
    depend on the binding.

    `return_immediately` and `history_length` are excluded, so that a client can wait for a task by sending its message
    again. The tenant is excluded because it is part of the scope, and the parent because it is not part of the work.

    Source: A2A specification 3.3.1 (an agent may detect duplicates by the message id).
    """
    work = SendMessageRequest()
    work.CopyFrom(params)
    work.ClearField("tenant")
    work.ClearField("configuration")
    remove_parent(work.message)
    configuration = SendMessageConfiguration()
    configuration.CopyFrom(params.configuration)
    configuration.ClearField("return_immediately")
    configuration.ClearField("history_length")
    canonical = json.dumps([MessageToDict(work), MessageToDict(configuration)], sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()
