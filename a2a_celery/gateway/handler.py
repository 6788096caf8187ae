"""Handler that implements the A2A operations of one agent with the store and the broker.

`pipeline.serving` shows what happens to a call before and after its operation.

Source: A2A specification 3.1.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

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
from ..lifecycle import EventId, is_interrupted, is_terminal
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
from ..telemetry.logs import about
from ..telemetry.names import Action
from .auth.refusal_log import RefusalLog
from .call import Call
from .cards import card_of, extended_card
from .gate import Gate
from .operations import validation as checks
from .operations.task_reader import StoredTask, TaskReader
from .operations.turns import TurnFollower
from .pipeline import Operation
from .protocol_errors import LAST_EVENT_ID
from .shutdown import GatewayShutdown

CANCEL_MARGIN = 2.0
"""Seconds that CancelTask waits for the end of the task in addition to the agent's cancel grace period."""

logger = logging.getLogger(__name__)

F = TypeVar("F")


class GatewayHandler:
    """A2A operations of one agent, which all bindings use."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        follower: LogFollower,
        service: TaskService,
        shutdown: GatewayShutdown,
        features: Sequence[GatewayFeature],
        gate: Gate,
        task_reader: TaskReader,
        refusal_log: RefusalLog,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.agent = agent
        self.metrics, self.gate, self.refusal_log = gate.metrics, gate, refusal_log
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
        self._turns = TurnFollower(follower, hold, gate.metrics, clock)

    async def send_message(self, params: SendMessageRequest, call: Call) -> Task | Message:
        """Accept a message and wait for the end of its turn.

        Returns:
            The agent's direct answer, or the task once it is terminal or interrupted. With `return_immediately`, or if
            the gateway shuts down, the task in its current state, so that the client learns the task id.
        """
        self._check_send(params, call)
        if params.configuration.return_immediately:
            accepted = await self._accept(params, call, self.scope(call))
            accepted = await self._turns.with_full_task(accepted)
            return apply_history_length(accepted.task, params.configuration)
        scope, length = self.scope(call), _history_length(params.configuration)
        async with self._accepting(params, call, scope, final_only=True) as (accepted, wakeup):
            end = None
            with self.shutdown.waiting():
                end = await self._turns.wait_for_end(accepted, wakeup, scope, length)
        if isinstance(end, Message):
            await self._turns.unlist(accepted.task.id)
        if isinstance(end, Message | Task):
            return end
        task = await self._read(accepted.task.id, call, params.configuration)
        if end is not None and not (is_terminal(task.status.state) or is_interrupted(task.status.state)):
            task.status.CopyFrom(end)  # a queued message has started the next turn
        return task

    async def message_pages(self, params: SendMessageRequest, call: Call) -> AsyncGenerator[list[StreamEvent], None]:
        """Accept a message and stream its turn.

        Yields:
            Pages of events that became available together: first the task, then its updates until the task is terminal
            or interrupted. An agent's direct answer is the only event of its stream. An empty page is yielded when no
            event has occurred for a while.
        """
        self._check_send(params, call)
        checks.require_streaming(self.card)
        async with (
            self._accepting(params, call, self.scope(call)) as (accepted, wakeup),
            aclosing(self._turns.stream_pages(accepted, wakeup, params.configuration)) as pages,
        ):
            del params, call, accepted  # a long stream must not keep the request in memory
            async for page in pages:
                yield page
                del page

    async def subscription_pages(
        self, params: SubscribeToTaskRequest, call: Call
    ) -> AsyncGenerator[list[StreamEvent], None]:
        """Stream the task and its updates in pages, as `message_pages` does, until the task is terminal or interrupted.

        With ``Last-Event-ID``, the stream starts after that event. If the store has lost the event, the stream starts
        with the task.
        """
        self._check(params, call)
        checks.require_streaming(self.card)
        last_id = checks.last_event_id(call)
        async with self._follower.listen(params.id) as wakeup:
            stored_task = await self._task_reader.read(self.scope(call), params.id)
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
            del params, call, stored_task, task  # a long stream must not keep the task in memory
            async with aclosing(self._turns.events(cursor, wakeup)) as pages:
                async for events in pages:
                    yield events
                    del events

    async def get_task(self, params: GetTaskRequest, call: Call) -> Task:
        """Return the current task."""
        self._check(params, call)
        checks.check_history_length(params)
        return await self._read(params.id, call, params)

    async def list_tasks(self, params: ListTasksRequest, call: Call) -> ListTasksResponse:
        """Return a page of the caller's tasks of this agent, newest status first."""
        self._check(params, call)
        checks.check_list(params)
        return await self._task_reader.page(self.scope(call), params)

    async def cancel_task(self, params: CancelTaskRequest, call: Call) -> Task:
        """Cancel a task and wait for its end.

        Returns:
            The terminal task, or the current task if the agent does not stop within its grace period or the gateway
            shuts down.
        """
        self._check(params, call)
        scope = self.scope(call)
        stored_task = await self._task_reader.read(
            scope, params.id, history_length=0, artifacts=False, resolve_blobs=False
        )
        context_id = stored_task.task.context_id
        text = CANCELED_WITH_RUN if _is_with_run(params) else CANCELED_BY_CLIENT
        result = await self.service.cancel(scope, params.id, context_id, text=text)
        _log_cancel(self.agent.name, params.id, result)
        match result:
            case Refusal():
                raise await self._task_reader.error_of(result, scope, self.gate, archived=Reason.NOT_CANCELABLE)
            case CancelRequested(version):
                final_task = None
                with self.shutdown.waiting(), suppress(TimeoutError):
                    async with self.clock.timeout(self.agent.grace(self._settings) + CANCEL_MARGIN):
                        final_task = await self._follower.final_task(scope, params.id, after=version)
                if final_task is not None:
                    return final_task.task
        return await self._read(params.id, call, None)

    async def send_signal(self, params: SubscribeToTaskRequest, call: Call) -> dict[str, Any]:
        """Send a signal to a task of the caller. This operation is not part of A2A.

        Returns:
            The id of the task, and whether a run waited for the signal.
        """
        self._check(params, call)
        body = dict(call.body)
        body.pop("tenant", None)  # the binding reads the tenant
        signal, scope = Signal.from_body(body, Sender.CLIENT), self.scope(call)
        checks.require_signal(self.agent, signal.name)
        answer = await self.service.signal(params.id, signal, scope=scope)
        if isinstance(answer, Signalled):
            return {"taskId": params.id, "resumed": answer.has_resumed}
        raise await self._task_reader.error_of(answer, scope, self.gate)

    async def get_extended_card(self, params: GetExtendedAgentCardRequest, call: Call) -> AgentCard:
        self._check(params, call)
        card = extended_card(self.agent, self._settings, call)
        return checks.require_extended_card(self.card, card, call)

    @asynccontextmanager
    async def _accepting(
        self, params: SendMessageRequest, call: Call, scope: Scope, *, final_only: bool = False
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
            accepted = await self._accept(params, call, scope, task_id, reply_channel)
            if accepted.task.id != task_id:
                wakeup = await stack.enter_async_context(self._follower.listen(accepted.task.id, final_only=final_only))
            accepted_and_wakeup = [(accepted, wakeup)]
            del params, call, accepted  # a long wait must not keep the request in memory
            yield accepted_and_wakeup.pop()

    async def _accept(
        self,
        params: SendMessageRequest,
        call: Call,
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
            answer = await self._continue(params, call, scope)
        else:
            task_id = task_id or str(uuid4())
            answer = await self.service.create(
                self.agent,
                params,
                Caller.of(call),
                task_id,
                sections=await self._sections(params, call, task_id),
                reply_channel=reply_channel,
            )
        if isinstance(answer, Refusal):
            raise await self._task_reader.error_of(answer, scope, self.gate)
        if isinstance(answer, Accepted):
            return answer
        stored_task = await self._task_reader.read(scope, answer.task_id)
        task, newest, since = stored_task.task, stored_task.newest, EventId(answer.version)
        return Accepted(task, newest, preceding_turns=answer.preceding_turns, since=since)

    async def _continue(self, params: SendMessageRequest, call: Call, scope: Scope) -> Accepted | Known | Refusal:
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
            Caller.of(call),
            task,
            next_run=next_run,
            sections=await self._sections(params, call, task_id),
            run_in_thread=partial(self.gate.validate, self.agent.name, scope),
        )

    async def _read_to_continue(self, scope: Scope, task_id: str) -> StoredTask:
        length = None if self._is_call else 0  # a plain Celery task is called with all messages of the client
        return await self._task_reader.read(
            scope, task_id, history_length=length, artifacts=False, resolve_blobs=self._is_call
        )

    async def _sections(self, params: SendMessageRequest, call: Call, task_id: str) -> list[Section[Refusal]]:
        """Return the sections of the gateway's features for a message."""
        sections = [await feature.section_for_message(params, call, task_id) for feature in self._features]
        return [section for section in sections if section is not None]

    def feature(self, kind: type[F]) -> F | None:
        """Return the feature of the class `kind`, or None if the gateway does not use the feature."""
        return next((feature for feature in self._features if isinstance(feature, kind)), None)

    def _check(self, params: Proto, call: Call) -> None:
        require_fields(params)
        checks.require_tenant(call)

    def _check_send(self, params: SendMessageRequest, call: Call) -> None:
        self._check(params, call)
        checks.check_send(params, self.card, call)

    def scope(self, call: Call) -> Scope:
        """Return the scope of the caller's tasks."""
        return Scope(agent=self.agent.name, tenant=call.tenant, owner=call.user.user_name)

    async def _read(self, task_id: str, call: Call, options: SendMessageConfiguration | GetTaskRequest | None) -> Task:
        return (await self._task_reader.read(self.scope(call), task_id, history_length=_history_length(options))).task


def _history_length(options: SendMessageConfiguration | GetTaskRequest | None) -> int | None:
    """Return the maximum number of history messages in a response, or None for the whole history."""
    return options.history_length if options is not None and options.HasField("history_length") else None


def _is_with_run(params: CancelTaskRequest) -> bool:
    return dict(params.metadata).get(CANCELED_BY) == EndReason.WITH_RUN


def _log_cancel(agent: str, task_id: str, result: object) -> None:
    """Log a client's request to cancel a task and the store's `result`."""
    fields = about(Action.CANCEL_REQUESTED, agent=agent, task=task_id)
    logger.info("task %s: cancellation requested by its client: %s", task_id, type(result).__name__, extra=fields)


OPERATIONS = {
    operation.name: operation
    for operation in (
        Operation("SendMessage", GatewayHandler.send_message),
        Operation("SendStreamingMessage", GatewayHandler.message_pages, is_stream=True),
        Operation("SubscribeToTask", GatewayHandler.subscription_pages, is_stream=True, reads_tasks=True),
        Operation("GetTask", GatewayHandler.get_task, reads_tasks=True),
        Operation("ListTasks", GatewayHandler.list_tasks, reads_tasks=True),
        Operation("CancelTask", GatewayHandler.cancel_task),
        Operation("SendSignal", GatewayHandler.send_signal),
        Operation("GetExtendedAgentCard", GatewayHandler.get_extended_card, is_counted=False),
        *(Operation(feature.name, feature.perform) for feature in FEATURE_OPERATIONS),
    )
}
"""Operations by name."""
