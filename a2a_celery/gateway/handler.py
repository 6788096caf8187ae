"""Request handler that implements the A2A operations of one agent with the store and the broker.

`operation` wraps each operation in metrics and a span, then the owner's limits, then the mapping to A2A errors.

Source: A2A specification 3.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    GetExtendedAgentCardRequest,
    GetTaskRequest,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskState,
)
from a2a.utils.errors import UnsupportedOperationError
from a2a.utils.task import apply_history_length
from google.protobuf.message import Message as Proto

from ..agents import Agent
from ..caller import Caller
from ..clock import SYSTEM_CLOCK, Clock
from ..features.feature import GatewayFeature
from ..features.operations import OPERATIONS as FEATURE_OPERATIONS
from ..lifecycle import Event, EventId, is_interrupted, is_terminal
from ..lifecycle.end_reasons import CANCELED_BY, EndReason
from ..lifecycle.outcomes import CANCELED_BY_CLIENT, CANCELED_WITH_RUN
from ..lifecycle.references import Scope
from ..lifecycle.refusals import Reason, Refusal
from ..lifecycle.signals import Sender
from ..operations.errors import invalid
from ..operations.requests import require_fields
from ..operations.service import Signalled, TaskService
from ..operations.signals import Signal
from ..settings import Settings
from ..store.log.follower import LogFollower, StreamCursor, StreamEvent
from ..store.log.pubsub import Wakeup
from ..store.tasks.commands import ReplyChannel
from ..store.tasks.replies import Accepted, CancelRequested, Known
from ..store.verbs import Section
from .auth.refusal_log import RefusalLog
from .cards import card_of, extended_card
from .middleware.operation import log_cancel_request, operation
from .operations import validation as checks
from .operations.limits import OwnerLimits
from .operations.task_reader import StoredTask, TaskReader
from .operations.turns import TurnFollower, events_of
from .protocol_errors import LAST_EVENT_ID
from .shutdown import GatewayShutdown

CANCEL_MARGIN = 2.0
"""Seconds that CancelTask waits for the end of the task in addition to the agent's cancel grace period."""

F = TypeVar("F")

FEATURE_METHODS: Mapping[str, Callable[..., Any]] = {
    feature.name: operation(feature.name)(feature.perform) for feature in FEATURE_OPERATIONS
}
"""Operations that belong to features, by name, as methods of the handler."""


class GatewayHandler(RequestHandler):
    """A2A request handler of one agent, which all bindings use."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        follower: LogFollower,
        service: TaskService,
        shutdown: GatewayShutdown,
        features: Sequence[GatewayFeature],
        limits: OwnerLimits,
        task_reader: TaskReader,
        refusal_log: RefusalLog,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.agent = agent
        self.metrics, self.limits, self.refusal_log = limits.metrics, limits, refusal_log
        self.shutdown, self.clock = shutdown, clock
        self.card: AgentCard = card_of(agent, settings)
        self._features = features
        self._settings = settings
        self._follower = follower
        self.service = service
        self._task_reader = task_reader
        self._is_call = service.new_tasks(agent).is_call
        # only executors may reply with a message instead of a task
        hold = agent.first_event_hold if agent.kind == "executor" else 0
        self._turns = TurnFollower(follower, hold, limits.metrics, clock)

    @operation("SendMessage")
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Accept a message and wait for the end of its turn.

        Returns:
            The agent's direct answer, or the task once it is terminal or interrupted. With `return_immediately`, or if
            the gateway shuts down, the task in its current state, so that the client learns the task id.
        """
        self._check_send(params, context)
        if params.configuration.return_immediately:
            accepted = await self._accept(params, context, self.scope(context))
            accepted = await self._turns.with_full_task(accepted)
            return apply_history_length(accepted.task, params.configuration)
        scope, length = self.scope(context), _history_length(params.configuration)
        async with self._accepting(params, context, scope, final_only=True) as (accepted, wakeup):
            end = None
            with self.shutdown.waiting():
                end = await self._turns.wait_for_end(accepted, wakeup, scope, length)
        if isinstance(end, Message):
            await self._turns.unlist(accepted.task.id)
        if isinstance(end, Message | Task):
            return end
        task = await self._read(accepted.task.id, context, params.configuration)
        if end is not None and not (is_terminal(task.status.state) or is_interrupted(task.status.state)):
            task.status.CopyFrom(end)  # a queued message has started the next turn
        return task

    @operation("SendStreamingMessage")
    async def message_pages(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Accept a message and stream its turn.

        Yields:
            Pages of events that became available together: first the task, then its updates until the task is terminal
            or interrupted. An agent's direct answer is the only event of its stream. An empty page is yielded when no
            event has occurred for a while.
        """
        self._check_send(params, context)
        checks.require_streaming(self.card)
        async with (
            self._accepting(params, context, self.scope(context)) as (accepted, wakeup),
            aclosing(self._turns.stream_pages(accepted, wakeup, params.configuration)) as pages,
        ):
            del params, context, accepted  # a long stream must not keep the request in memory
            async for page in pages:
                yield page
                del page

    @operation("SubscribeToTask", bounded=True)
    async def subscription_pages(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Stream the task and its updates in pages, as `message_pages` does, until the task is terminal or interrupted.

        With ``Last-Event-ID``, the stream starts after that event. If the store has lost the event, the stream starts
        with the task.
        """
        self._check(params, context)
        checks.require_streaming(self.card)
        last_id = checks.last_event_id(context)
        async with self._follower.listen(params.id) as wakeup:
            stored_task = await self._task_reader.read(self.scope(context), params.id)
            task, newest = stored_task.task, stored_task.newest
            if (last_id is None or stored_task.archived) and is_terminal(task.status.state):
                state = TaskState.Name(task.status.state)
                raise UnsupportedOperationError(
                    f"The task has ended ({state}): read it with GetTask", data={"taskId": task.id}
                )
            if last_id is None:
                yield [StreamEvent(newest, task, is_stored=True)]
                last_id = newest
            elif last_id.version > newest.version and not last_id.recorded_us:
                raise invalid(LAST_EVENT_ID, f"The newest event of the task is {newest}.")
            if not last_id.differs_from(newest) and is_terminal(task.status.state):
                return
            cursor = StreamCursor(task.id, task.context_id, last_id, stored_version=newest.version)
            del params, context, stored_task, task  # a long stream must not keep the task in memory
            async with aclosing(self._turns.events(cursor, wakeup)) as pages:
                async for events in pages:
                    yield events
                    del events

    def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Return an iterator over the single events of `message_pages`."""
        return events_of(self.message_pages(params, context), context.state)

    def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """Return an iterator over the single events of `subscription_pages`."""
        return events_of(self.subscription_pages(params, context), context.state)

    @operation("GetTask", bounded=True)
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """Return the current task."""
        self._check(params, context)
        checks.check_history_length(params)
        return await self._read(params.id, context, params)

    @operation("ListTasks", in_turn=True)
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """Return a page of the caller's tasks of this agent, newest status first."""
        self._check(params, context)
        checks.check_list(params)
        return await self._task_reader.page(self.scope(context), params)

    @operation("CancelTask")
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancel a task and wait for its end.

        Returns:
            The terminal task, or the current task if the agent does not stop within its grace period or the gateway
            shuts down.
        """
        self._check(params, context)
        scope = self.scope(context)
        async with self._follower.listen(params.id) as wakeup:
            stored_task = await self._task_reader.read(
                scope, params.id, history_length=0, artifacts=False, resolve_blobs=False
            )
            context_id = stored_task.task.context_id
            text = CANCELED_WITH_RUN if _is_with_run(params) else CANCELED_BY_CLIENT
            result = await self.service.cancel(scope, params.id, context_id, text=text)
            log_cancel_request(self.agent.name, params.id, result)
            match result:
                case Refusal():
                    raise await self._task_reader.error_of(result, scope, self.limits, archived=Reason.NOT_CANCELABLE)
                case CancelRequested(version):
                    within = self.agent.grace(self._settings) + CANCEL_MARGIN
                    with self.shutdown.waiting():
                        await self._turns.wait_until_final(params.id, wakeup, version, within)
        return await self._read(params.id, context, None)

    @operation("SendSignal")
    async def on_send_signal(self, params: SubscribeToTaskRequest, context: ServerCallContext) -> dict[str, Any]:
        """Send a signal to a task of the caller. This operation is not part of A2A.

        Returns:
            The id of the task, and whether a run waited for the signal.
        """
        self._check(params, context)
        body = dict(context.state[checks.SIGNAL])
        body.pop("tenant", None)  # the binding reads the tenant
        signal, scope = Signal.from_body(body, Sender.CLIENT), self.scope(context)
        checks.require_signal(self.agent, signal.name)
        answer = await self.service.signal(params.id, signal, scope=scope)
        if isinstance(answer, Signalled):
            return {"taskId": params.id, "resumed": answer.has_resumed}
        raise await self._task_reader.error_of(answer, scope, self.limits)

    @operation("GetExtendedAgentCard", counted=False)
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        self._check(params, context)
        card = extended_card(self.agent, self._settings, context)
        return checks.require_extended_card(self.card, card, context)

    # the SDK calls these operations as methods
    on_create_task_push_notification_config = FEATURE_METHODS["CreateTaskPushNotificationConfig"]
    on_get_task_push_notification_config = FEATURE_METHODS["GetTaskPushNotificationConfig"]
    on_list_task_push_notification_configs = FEATURE_METHODS["ListTaskPushNotificationConfigs"]
    on_delete_task_push_notification_config = FEATURE_METHODS["DeleteTaskPushNotificationConfig"]

    @asynccontextmanager
    async def _accepting(
        self, params: SendMessageRequest, context: ServerCallContext, scope: Scope, *, final_only: bool = False
    ) -> AsyncGenerator[tuple[Accepted, Wakeup], None]:
        """Accept a message and subscribe to its task.

        Yields:
            The accepted message, and a `Wakeup` that is notified of every later write to its task or, with
            `final_only`, only of interrupted and terminal states.
        """
        task_id = params.message.task_id or str(uuid4())
        reply_channel = None if params.message.task_id else self._follower.reply_channel(final_only=final_only)
        async with AsyncExitStack() as stack:
            # subscribe before the write, so that no event is missed
            wakeup = await stack.enter_async_context(
                self._follower.listen(task_id, reply_channel, final_only=final_only)
            )
            accepted = await self._accept(params, context, scope, task_id, reply_channel)
            if accepted.task.id != task_id:
                wakeup = await stack.enter_async_context(self._follower.listen(accepted.task.id, final_only=final_only))
            accepted_and_wakeup = [(accepted, wakeup)]
            del params, context, accepted  # a long wait must not keep the request in memory
            yield accepted_and_wakeup.pop()

    async def _accept(
        self,
        params: SendMessageRequest,
        context: ServerCallContext,
        scope: Scope,
        task_id: str = "",
        reply_channel: ReplyChannel | None = None,
    ) -> Accepted:
        """Store the message and publish its run. A message without a task id creates a task with the id `task_id`, or
        with a new id if `task_id` is "".

        If the message repeats an accepted message, the existing task is returned.

        Raises:
            A2AError: The message is invalid or exceeds a limit, or the task cannot accept the message.
        """
        if params.message.task_id:
            answer = await self._continue(params, context, scope)
        else:
            task_id = task_id or str(uuid4())
            answer = await self.service.create(
                self.agent,
                params,
                Caller.of(context),
                task_id,
                sections=await self._sections(params, context, task_id),
                reply_channel=reply_channel,
            )
        if isinstance(answer, Refusal):
            raise await self._task_reader.error_of(answer, scope, self.limits)
        if isinstance(answer, Accepted):
            return answer
        stored_task = await self._task_reader.read(scope, answer.task_id)
        task, newest, since = stored_task.task, stored_task.newest, EventId(answer.version)
        return Accepted(task, newest, preceding_turns=answer.preceding_turns, since=since)

    async def _continue(
        self, params: SendMessageRequest, context: ServerCallContext, scope: Scope
    ) -> Accepted | Known | Refusal:
        task_id = params.message.task_id
        stored_task, next_run = await asyncio.gather(  # one round trip
            self._read_to_continue(scope, task_id), self.service.next_run(task_id)
        )
        task = stored_task.task
        if stored_task.archived:
            return Refusal(Reason.ENDED, task_id, {"state": task.status.state})
        return await self.service.continue_(
            self.agent,
            params,
            Caller.of(context),
            task,
            next_run=next_run,
            sections=await self._sections(params, context, task_id),
            run_in_thread=partial(self.limits.check_answer, self.agent.name, scope),
        )

    async def _read_to_continue(self, scope: Scope, task_id: str) -> StoredTask:
        length = None if self._is_call else 0  # a plain Celery task is called with all messages of the client
        return await self._task_reader.read(
            scope, task_id, history_length=length, artifacts=False, resolve_blobs=self._is_call
        )

    async def _sections(
        self, params: SendMessageRequest, context: ServerCallContext, task_id: str
    ) -> list[Section[Refusal]]:
        """Return the sections of the gateway's features for a message."""
        sections = [await feature.section_for_message(params, context, task_id) for feature in self._features]
        return [section for section in sections if section is not None]

    async def perform(self, name: str, params: Any, context: ServerCallContext) -> Any:
        """Perform the operation `name` of a feature, and return its response."""
        return await FEATURE_METHODS[name](self, params, context)

    def feature(self, kind: type[F]) -> F | None:
        """Return the feature of the class `kind`, or None if the gateway does not use the feature."""
        return next((feature for feature in self._features if isinstance(feature, kind)), None)

    def _check(self, params: Proto, context: ServerCallContext) -> None:
        require_fields(params)
        checks.require_tenant(context)

    def _check_send(self, params: SendMessageRequest, context: ServerCallContext) -> None:
        self._check(params, context)
        checks.check_send(params, self.card, context)

    def scope(self, context: ServerCallContext) -> Scope:
        """Return the scope of the caller's tasks."""
        return Scope(agent=self.agent.name, tenant=context.tenant, owner=context.user.user_name)

    async def _read(
        self, task_id: str, context: ServerCallContext, options: SendMessageConfiguration | GetTaskRequest | None
    ) -> Task:
        return (
            await self._task_reader.read(self.scope(context), task_id, history_length=_history_length(options))
        ).task


def _history_length(options: SendMessageConfiguration | GetTaskRequest | None) -> int | None:
    """Return the maximum number of history messages in a response, or None for the whole history."""
    return options.history_length if options is not None and options.HasField("history_length") else None


def _is_with_run(params: CancelTaskRequest) -> bool:
    return dict(params.metadata).get(CANCELED_BY) == EndReason.WITH_RUN
