"""Acceptance of messages: validate the message, route it, write it to the store, then publish the run. An accepted
message is never lost.

The fact that a run was published is recorded in the background, in batches, so that no request waits for it.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import Message, SendMessageConfiguration, SendMessageRequest, Task
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError
from google.protobuf.json_format import MessageToDict

from ...agents import Agent
from ...caller import Caller
from ...child_tasks import parent_named_in, remove_parent
from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import BadCall, Call, CallSignature, Publisher, RunOptions
from ...errors import StoreUnavailable
from ...lifecycle import EventId, is_terminal
from ...settings import Settings
from ...store import AsyncStore, Keys, Operation, Scope
from ...store.log.pubsub import LogFollower, LogSignal
from ...store.runs.commands import RunRef, mark_all_published
from ...store.tasks import commands as tasks
from ...store.tasks import results as answers
from ...store.tasks.commands import IdempotencyKey
from ...store.tasks.family import MAX_DEPTH, Parent
from ...store.webhooks.push_configs import NewPushConfig
from ...telemetry.tracing import trace_to_keep
from ..protocol_errors import MAX_ID_LENGTH, invalid, not_found
from .limits import OwnerLimits
from .push_configs import PushConfigs, too_many_configs
from .structured_answers import messages_with_arguments, require_fitting_answer
from .task_reader import TaskReader, closed_task_error

SCHEDULE = "celery_schedule"
"""Key of the message's schedule in the request's metadata."""

TIMES = ("not_before", "not_after")


def run_options(agent: Agent, request: SendMessageRequest, caller: Caller, call: Call | None = None) -> RunOptions:
    """Return the options with which the run of `request` is published. A plain Celery task receives `call`.

    Raises:
        InvalidParamsError: The client's times are not allowed or invalid.
        Exception: The agent's route failed. An invalid route raises TypeError or ValueError.
    """
    now = SYSTEM_CLOCK.now()
    times = _times(agent, request, now)
    given: Any = {}
    if agent.route is not None:
        shown = SendMessageRequest()
        shown.CopyFrom(request)  # a route may change its argument, so it gets a copy
        given = agent.route(shown, caller)
    options = RunOptions.of(given, times.get("not_before"), times.get("not_after"), now, call)
    return replace(options, trace=trace_to_keep(caller.headers))


def _times(agent: Agent, request: SendMessageRequest, now: datetime) -> dict[str, datetime]:
    field = f"metadata.{SCHEDULE}"
    if SCHEDULE not in request.metadata.fields:
        return {}
    if not agent.scheduling:
        raise invalid(field, "This agent does not let clients schedule messages.")
    given = MessageToDict(request.metadata)[SCHEDULE]
    if not isinstance(given, dict) or not given or set(given) - set(TIMES):
        raise invalid(field, f"An object with {' or '.join(TIMES)}, or both.")
    times = {name: _time(f"{field}.{name}", value) for name, value in given.items()}
    earliest = times.get("not_before", now)
    # with a window, the message may have been accepted before, when the time was still to come
    if agent.idempotency_window is None:
        earliest = max(now, earliest)
    if times.get("not_after", datetime.max.replace(tzinfo=UTC)) <= earliest:
        raise invalid(f"{field}.not_after", "A time in the future, and after not_before.")
    return times


def _time(field: str, value: Any) -> datetime:
    try:
        time = datetime.fromisoformat(value)
        if time.tzinfo is not None:
            return time.astimezone(UTC)
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(field, "An ISO 8601 time with an offset from UTC, such as 2030-01-01T08:00:00Z.")


logger = logging.getLogger(__name__)

RECORD_INTERVAL = 0.25
"""Seconds between two writes of such records. The interval is much shorter than `FIRST_PUBLISH_GRACE_US`, after which a
watcher publishes an unrecorded run."""


class BackgroundPublisher:
    """Publishes runs in the background and records them as published.

    If recording fails or this process ends first, a watcher publishes the run again, and the worker drops the
    duplicate.

    Args:
        redispatch_after: Seconds after which a watcher checks an unclaimed run of a plain Celery task, which may be
            running without a claim.
        recover_after: Seconds after which a watcher checks any other unclaimed run.
    """

    def __init__(
        self,
        publisher: Publisher,
        store: AsyncStore,
        keys: Keys,
        redispatch_after: float,
        recover_after: float,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.publisher = publisher
        self._store = store
        self._keys = keys
        self._redispatch_after = timedelta(seconds=redispatch_after)
        self._recover_after = min(timedelta(seconds=recover_after), self._redispatch_after)
        self._published: dict[RunRef, int] = {}
        self._recorder: asyncio.Task[None] | None = None

    def publish(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Publish a run in the background. A run that is scheduled for much later is published by a watcher."""
        now = self._clock.now()
        if options.publish_delay(now):
            return
        wait = self._recover_after if options.call is None else self._redispatch_after
        again_us = options.next_check_in(now, wait) // timedelta(microseconds=1)

        def on_published() -> None:
            self._published[ref] = again_us
            if self._recorder is None:
                self._recorder = asyncio.create_task(self._record_later(), name="a2a-published-runs")

        self.publisher.publish_soon(agent, ref.task_id, ref.run, options.to_json(), on_published)

    async def aclose(self) -> None:
        """Record the remaining runs."""
        if self._recorder is not None:
            self._recorder.cancel()
            await asyncio.wait({self._recorder})
        await self._record()

    async def _record_later(self) -> None:
        while self._published:
            await self._clock.sleep(RECORD_INTERVAL)
            await self._record()
        self._recorder = None

    async def _record(self) -> None:
        published, self._published = self._published, {}
        if not published:
            return
        try:
            await self._store.run(mark_all_published(self._keys, published))
        except StoreUnavailable as e:
            logger.warning(
                "could not record %d published runs; watchers will publish them again: %s", len(published), e
            )
        except Exception:  # later runs must still be recorded
            logger.exception("could not record %d published runs; watchers will publish them again", len(published))


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """Accepted message and its task, up to the event `newest`.

    Attributes:
        since: Event after which the message's turn is in the log.
        preceding_turns: Number of turns that start after `since` and before the message's own turn; see `TurnWatch`.
        new: True if the log ends at `newest`.
        is_resolved: False if `task` has unresolved blob references. Clients must not receive such a task; see
            `with_full_task`.
    """

    task: Task
    newest: EventId
    since: EventId
    preceding_turns: int
    new: bool = False
    is_resolved: bool = True

    @property
    def is_first(self) -> bool:
        """Return True if the message created the task."""
        return self.since.version == 1 and not self.preceding_turns


class MessageAcceptor:
    """Accepts the messages for one agent."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        follower: LogFollower,
        publisher: BackgroundPublisher,
        push_configs: PushConfigs | None,
        limits: OwnerLimits,
        task_reader: TaskReader,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._follower = follower
        self._store = follower.store
        self._keys = follower.keys
        self._publisher = publisher
        self._push_configs = push_configs
        self._limits = limits
        self._task_reader = task_reader
        self._signature = CallSignature.of(agent.code) if agent.kind == "task" else None

    @asynccontextmanager
    async def accepting(
        self, params: SendMessageRequest, context: ServerCallContext, scope: Scope, *, final_only: bool = False
    ) -> AsyncGenerator[tuple[AcceptedMessage, LogSignal], None]:
        """Accept a message and subscribe to its task.

        Yields:
            The accepted message, and a signal for every later write to its task. With `final_only`, the signal is set
            only for interrupted and terminal states.
        """
        task_id = params.message.task_id or str(uuid4())
        reply_channel = None if params.message.task_id else self._follower.reply_channel(final_only=final_only)
        async with AsyncExitStack() as stack:
            # subscribe before the write, so that no event is missed
            signal = await stack.enter_async_context(
                self._follower.listen(task_id, reply_channel, final_only=final_only)
            )
            accepted = await self._accept(params, context, scope, task_id, reply_channel)
            if accepted.task.id != task_id:
                signal = await stack.enter_async_context(self._follower.listen(accepted.task.id, final_only=final_only))
            accepted_and_signal = [(accepted, signal)]
            del params, context, accepted  # a long wait must not keep the request in memory
            yield accepted_and_signal.pop()

    async def accept(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> AcceptedMessage:
        """Accept a message and resolve the blob references of its task."""
        return await with_full_task(self._follower, await self._accept(params, context, scope))

    async def _accept(
        self,
        params: SendMessageRequest,
        context: ServerCallContext,
        scope: Scope,
        task_id: str = "",
        reply_channel: tasks.ReplyChannel | None = None,
    ) -> AcceptedMessage:
        """Store the message and publish its run. A message without a task id creates a task, whose id is `task_id`
        unless that is empty.

        If the message was already accepted within the agent's `idempotency_window`, the existing task is returned.

        Raises:
            A2AError: The task of the message cannot accept it.
        """
        if params.message.task_id:
            return await self._continue(params, context, scope)
        task_id = task_id or str(uuid4())
        request = _with_ids(params, context.tenant, task_id, params.message.context_id or str(uuid4()))
        caller = Caller.of(context)
        options = run_options(self._agent, request, caller, self._call([request.message]))
        parent_id, cancels = parent_named_in(request.message)
        answer = await self._store.run(
            tasks.create_task(
                self._keys,
                scope,
                task_id,
                request.message.context_id,
                request,
                caller=caller.to_json(),
                retention=self._settings.retention,
                options=options.to_json(),
                idempotency_key=idempotency_key(self._agent, params),
                push=await self._push(params, context, task_id),
                serialize_context=self._agent.serialize_context,
                limits=await self._limits.task_limits(),
                reply_channel=reply_channel,
                parent=Parent(parent_id, cancels) if 0 < len(parent_id) <= MAX_ID_LENGTH else None,
            )
        )
        match answer:
            case answers.Created(task, newest, is_blocked):
                if not is_blocked:
                    self._publisher.publish(self._agent.name, RunRef(task_id, 1), options)
                return AcceptedMessage(task, newest, since=newest, preceding_turns=0, new=True)
            case answers.Known():
                return await self._accepted_before(answer, scope)
            case answers.Conflict():
                raise self._message_id_conflict(params)
            case answers.Limited():
                raise self._limits.limit_error(self._agent.name, answer)
            case answers.TooDeep():
                raise UnsupportedOperationError(
                    f"The parent task has {MAX_DEPTH} ancestors, the maximum: agents may call each other in a cycle"
                )

    async def _accepted_before(self, known: answers.Known, scope: Scope) -> AcceptedMessage:
        stored = await self._task_reader.read(scope, known.task_id)
        return AcceptedMessage(
            stored.task, stored.newest, since=EventId(known.version), preceding_turns=known.preceding_turns
        )

    def _message_id_conflict(self, params: SendMessageRequest) -> InvalidParamsError:
        return invalid(
            "message.message_id",
            f"Another message had this id within the last {self._agent.idempotency_window:g} seconds: send a new id.",
        )

    async def _continue(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> AcceptedMessage:
        task_id = params.message.task_id
        length = 0 if self._signature is None else None  # a call takes all messages of the client
        stored = await self._task_reader.read(
            scope, task_id, history_length=length, artifacts=False, resolve_blobs=self._signature is not None
        )
        task = stored.task
        if stored.archived:
            raise closed_task_error(task_id, task.status.state)
        request = _with_ids(params, context.tenant, task_id, task.context_id)
        caller = Caller.of(context)
        options = run_options(self._agent, request, caller, self._next_call(task, request.message))
        answer = await self._add_message(
            request,
            partial(
                tasks.continue_task,
                self._keys,
                scope,
                task_id,
                request,
                params.message.context_id,
                caller=caller.to_json(),
                nonce=uuid4().hex,
                options=options.to_json(),
                idempotency_key=idempotency_key(self._agent, params),
                push=await self._push(params, context, task_id),
                limits=await self._limits.task_limits(),
                max_bytes=self._settings.task_max_bytes,
            ),
        )
        match answer:
            case answers.TooManyConfigs():
                raise too_many_configs(task_id)
            case answers.Missing():
                raise await self._task_reader.closed_task_error(scope, task_id)
            case answers.WrongContext(context_id):
                text = f"The task belongs to context {context_id!r}: send this context id or none."
                raise invalid("message.context_id", text)
            case answers.Ended(state):
                raise closed_task_error(task_id, state)
            case answers.Full():
                raise UnsupportedOperationError(
                    f"{tasks.MAX_WAITING_TURNS} messages wait for this task: send this message again later",
                    data={"taskId": task_id},
                )
            case answers.TooLarge():
                raise _too_large(task_id, self._settings.task_max_bytes)
            case answers.Begun(run, task, newest, is_blocked, is_resolved):
                if not is_blocked:
                    self._publisher.publish(self._agent.name, RunRef(task_id, run), options)
                return AcceptedMessage(task, newest, since=newest, preceding_turns=0, new=True, is_resolved=is_resolved)
            case answers.Waiting(place, task, newest, is_resolved):
                return AcceptedMessage(task, newest, since=newest, preceding_turns=place, is_resolved=is_resolved)
            case answers.Known():
                return await self._accepted_before(answer, scope)
            case answers.Conflict():
                raise self._message_id_conflict(params)
            case answers.Limited():
                raise self._limits.limit_error(self._agent.name, answer)

    async def _add_message(
        self, request: SendMessageRequest, operation: Callable[..., Operation[answers.Continued]]
    ) -> answers.Answered:
        """Store the message of `request`. If it answers a question with a schema, validate it before.

        Raises:
            InvalidParamsError: The message does not fit the open question. Nothing is stored.
        """
        answer = await self._store.run(operation())
        while isinstance(answer, answers.OpenQuestion):
            await require_fitting_answer(answer.schema, request.message)
            answer = await self._store.run(operation(answered_run=answer.run))
        return answer

    async def _push(self, params: SendMessageRequest, context: ServerCallContext, task_id: str) -> NewPushConfig | None:
        """Return the push notification config of a message, or None if the message has none."""
        return (
            None if self._push_configs is None else await self._push_configs.config_of_message(params, context, task_id)
        )

    def _call(self, messages: list[Message]) -> Call | None:
        """Return the call of a plain Celery task with `messages`, or None for any other kind of agent."""
        if self._signature is None:
            return None
        try:
            return Call(self._agent.code.name, self._signature.call(messages))
        except BadCall as e:
            raise invalid("message.parts", str(e)) from None

    def _next_call(self, task: Task, message: Message) -> Call | None:
        """Return the call of a plain Celery task with the messages of `task` and a further one, or None."""
        return None if is_terminal(task.status.state) else self._call(messages_with_arguments(task, message))


async def with_full_task(follower: LogFollower, accepted: AcceptedMessage) -> AcceptedMessage:
    """Return `accepted` with its blob references resolved. The task may have newer events than `accepted`.

    Raises:
        StoreUnavailable: The task cannot be read.
    """
    if accepted.is_resolved:
        return accepted
    stored = await follower.store.run(tasks.read_task(follower.keys, None, accepted.task.id))
    if stored is None:
        raise not_found(accepted.task.id)
    return replace(accepted, task=stored[0], newest=stored[1], is_resolved=True)


def _too_large(task_id: str, max_bytes: int | None) -> UnsupportedOperationError:
    text = (
        f"This message would make the task larger than {max_bytes} bytes: send the message without a task id, in the "
        "same context, to create a new task"
    )
    return UnsupportedOperationError(text, data={"taskId": task_id})


def _with_ids(params: SendMessageRequest, tenant: str, task_id: str, context_id: str) -> SendMessageRequest:
    """Return the request for the run and the agent's route.

    The request contains the validated tenant, and its message contains the task id and the context id. The push
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
    """Return the idempotency key of a request as the client sent it, or None if the agent has no
    `idempotency_window`."""
    if agent.idempotency_window is None:
        return None
    return IdempotencyKey(params.message.message_id, message_digest(params), int(agent.idempotency_window * 1000))


def message_digest(params: SendMessageRequest) -> str:
    """Return a digest that is equal for two requests if and only if they ask for the same work, whatever binding they
    use.

    `return_immediately` and `history_length` are excluded, so that a client can wait for a task by sending its message
    again. The tenant is excluded because it is part of the scope, and the parent because it is not part of the work.

    Source: A2A specification 3.3.1 (an agent may detect duplicates by the message id).
    """
    work = SendMessageRequest()
    work.CopyFrom(params)
    work.ClearField("tenant")
    work.ClearField("configuration")
    remove_parent(work.message)
    asked = SendMessageConfiguration()
    asked.CopyFrom(params.configuration)
    asked.ClearField("return_immediately")
    asked.ClearField("history_length")
    canonical = json.dumps([MessageToDict(work), MessageToDict(asked)], sort_keys=True, separators=(",", ":"))
    return sha256(canonical.encode()).hexdigest()
