"""The operations of A2A, over the store and the broker; one handler per agent.

Source: A2A specification 3.1. Errors are raised as A2A errors only, see ``faults``.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from a2a.server.context import ServerCallContext
from a2a.server.request_handlers.request_handler import RequestHandler
from a2a.types import (
    AgentCard,
    CancelTaskRequest,
    DeleteTaskPushNotificationConfigRequest,
    GetExtendedAgentCardRequest,
    GetTaskPushNotificationConfigRequest,
    GetTaskRequest,
    ListTaskPushNotificationConfigsRequest,
    ListTaskPushNotificationConfigsResponse,
    ListTasksRequest,
    ListTasksResponse,
    Message,
    SendMessageConfiguration,
    SendMessageRequest,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from a2a.utils.errors import (
    ExtendedAgentCardNotConfiguredError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from a2a.utils.task import apply_history_length
from google.protobuf.message import Message as Proto

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..config import Settings
from ..dispatch import Canvas
from ..lifecycle import Event, is_interrupted, is_terminal
from ..store import AsyncStore, Keys, Scope, answers, tasks
from ..store.follow import LogFollower
from ..store.runs import RunRef
from . import checks
from .cards import card_of, extended_card
from .faults import invalid, speaks_a2a
from .handing_over import HandingOver
from .intake import Intake
from .kept import KeptTasks, ended_already
from .leaving import Leaving
from .limits import Limits, within_limits
from .observing import cancel_asked, told_of
from .push_configs import PushConfigs
from .required import require_fields
from .streams import VERSIONS, Shown, TurnWatch, each_of
from .turns import TurnFollower

CANCEL_MARGIN = 2.0
"""Seconds beyond the agents' grace that CancelTask waits for the end before it answers with the task as it is."""


@told_of
@within_limits
class GatewayHandler(RequestHandler):
    """Serves one agent."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        follower: LogFollower,
        handing_over: HandingOver,
        leaving: Leaving,
        push_configs: PushConfigs | None,
        limits: Limits,
        kept: KeptTasks,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.agent = agent
        self.metrics, self.limits = limits.metrics, limits
        self.leaving, self.clock = leaving, clock
        self._card: AgentCard = card_of(agent, settings)
        self._push_configs = push_configs
        self._settings = settings
        self._follower = follower
        self._store: AsyncStore = follower.store
        self._keys: Keys = follower.keys
        self._publisher = handing_over.publisher
        self._kept = kept
        self._intake = Intake(agent, settings, follower, handing_over, push_configs, limits, kept)
        # a function agent never answers with a message alone
        self._turns = TurnFollower(
            follower, settings.first_event_hold if agent.kind == "executor" else 0, limits.metrics, clock
        )

    @speaks_a2a
    async def on_message_send(self, params: SendMessageRequest, context: ServerCallContext) -> Task | Message:
        """Accepts a message; returns the task when it has ended or paused, or at once if asked, or a direct answer.

        A gateway that stops returns it as it is: then at least its client knows it.
        """
        self._check_send(params, context)
        if params.configuration.return_immediately:
            sent = await self._intake.accept(params, context, self._scope(context))
            return apply_history_length(sent.task, params.configuration)
        scope, length = self._scope(context), _history_length(params.configuration)
        async with self._intake.accepting(params, context, scope, stops=True) as (sent, bell):
            end = None
            with self.leaving.may_be_cut_short():
                end = await self._turns.end_of(sent, bell, scope, length)
        if isinstance(end, Message):
            await self._turns.unlist(sent.task.id)
        if isinstance(end, Message | Task):
            return end
        task = await self._read(sent.task.id, context, params.configuration)
        if end is not None and not (is_terminal(task.status.state) or is_interrupted(task.status.state)):
            task.status.CopyFrom(end)  # a message that waited has begun the next turn since
        return task

    @speaks_a2a
    async def message_pages(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[list[Shown], None]:
        """Accepts a message; yields the task and its events until it ends or pauses, or a direct answer alone.

        As many events together as there are, the task before them; none when nothing has happened for a while.
        """
        self._check_send(params, context)
        checks.require_streaming(self._card)
        async with (
            self._intake.accepting(params, context, self._scope(context)) as (sent, bell),
            aclosing(self._turns.pages_of(sent, bell, params.configuration)) as pages,
        ):
            del params, context, sent  # what is open for long holds little, however large the message and its task
            async for page in pages:
                yield page
                del page

    @speaks_a2a
    async def subscription_pages(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[list[Shown], None]:
        """Yields the task and what follows, until it ends or pauses, see `message_pages`. With Last-Event-ID: what
        follows that event."""
        self._check(params, context)
        checks.require_streaming(self._card)
        after = checks.last_event_id(context)
        async with self._follower.listen(params.id) as bell:
            kept = await self._kept.read(self._scope(context), params.id)
            task, version = kept.task, kept.version
            if (after is None or kept.archived) and is_terminal(task.status.state):
                state = TaskState.Name(task.status.state)
                raise UnsupportedOperationError(
                    f"The task has ended ({state}): read it with GetTask", data={"taskId": task.id}
                )
            if after is None:
                yield [Shown(version, task)]
            elif after > version:
                raise invalid(checks.LAST_EVENT_ID, f"The task stands at event {version}.")
            if after is not None and after == version and is_terminal(task.status.state):
                return
            watch, ended = TurnWatch(), False
            start = version if after is None else after
            task = Task(id=task.id, context_id=task.context_id)  # all that is asked of it now
            del params, context, kept
            async with aclosing(self._turns.pages(task.id, bell, start)) as pages:
                while not ended and (page := await anext(pages, None)) is not None:
                    version = 0 if page.restored else version  # versions begin anew
                    seen, ended = watch.read(page.entries, task, until=version)
                    yield seen
                    del seen, page

    def on_message_send_stream(
        self, params: SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """`message_pages`, event by event."""
        return each_of(self.message_pages(params, context), context.state.get(VERSIONS))

    def on_subscribe_to_task(
        self, params: SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """`subscription_pages`, event by event."""
        return each_of(self.subscription_pages(params, context), context.state.get(VERSIONS))

    @speaks_a2a
    async def on_get_task(self, params: GetTaskRequest, context: ServerCallContext) -> Task:
        """The task as it is now."""
        self._check(params, context)
        checks.check_history_length(params)
        return await self._read(params.id, context, params)

    @speaks_a2a
    async def on_list_tasks(self, params: ListTasksRequest, context: ServerCallContext) -> ListTasksResponse:
        """The caller's tasks of this agent, newest status first, a page at a time."""
        self._check(params, context)
        checks.check_list(params)
        return await self._kept.page(self._scope(context), params)

    @speaks_a2a
    async def on_cancel_task(self, params: CancelTaskRequest, context: ServerCallContext) -> Task:
        """Cancels; returns the task when it has ended, or as it is when its agent has not stopped within its grace."""
        self._check(params, context)
        scope = self._scope(context)
        async with self._follower.listen(params.id) as bell:
            found = await self._kept.read(scope, params.id, history_length=0, artifacts=False, whole=False)
            context_id = found.task.context_id
            answer = await self._store.run(tasks.request_cancel(self._keys, scope, params.id, context_id))
            cancel_asked(self.agent.name, params.id, answer)
            match answer:
                case answers.Missing():
                    raise await self._kept.not_cancelable(scope, params.id)
                case answers.Ended(state):
                    raise ended_already(params.id, state)
                case answers.CanceledNow(run, _, canvas):
                    if run is not None:
                        self._publisher.revoke_soon([RunRef(params.id, run).name])
                    if canvas:
                        self._publisher.revoke_soon(Canvas.from_json(canvas).ids(), terminate=True)
                case answers.CancelAsked(version):
                    await self._turns.stopped(params.id, bell, version, self._settings.cancel_grace + CANCEL_MARGIN)
        return await self._read(params.id, context, None)

    @speaks_a2a
    async def on_get_extended_agent_card(
        self, params: GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> AgentCard:
        """The extended card."""
        self._check(params, context)
        checks.require_extended_card(self._card, context)
        card = extended_card(self.agent, self._settings, context)
        if card is None:
            raise ExtendedAgentCardNotConfiguredError
        return card

    @speaks_a2a
    async def on_create_task_push_notification_config(
        self, params: TaskPushNotificationConfig, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """Has the task's events posted to a webhook, from now on."""
        return await self._push(params, context).create(self._scope(context), params, context)

    @speaks_a2a
    async def on_get_task_push_notification_config(
        self, params: GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> TaskPushNotificationConfig:
        """A config, without its secrets."""
        return await self._push(params, context).get(self._scope(context), params.task_id, params.id)

    @speaks_a2a
    async def on_list_task_push_notification_configs(
        self, params: ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> ListTaskPushNotificationConfigsResponse:
        """The configs of a task, without their secrets."""
        return await self._push(params, context).list(self._scope(context), params)

    @speaks_a2a
    async def on_delete_task_push_notification_config(
        self, params: DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """Nothing more is posted for the config."""
        await self._push(params, context).delete(self._scope(context), params.task_id, params.id)

    def _push(self, params: Proto, context: ServerCallContext) -> PushConfigs:
        """What it is done by. An agent without push notifications says so first, whatever is wrong with the request."""
        checks.require_tenant(context)
        if self._push_configs is None or not self._card.capabilities.push_notifications:
            raise PushNotificationNotSupportedError("Push notifications are not supported by this agent")
        require_fields(params)
        return self._push_configs

    def _check(self, params: Proto, context: ServerCallContext) -> None:
        require_fields(params)
        checks.require_tenant(context)

    def _check_send(self, params: SendMessageRequest, context: ServerCallContext) -> None:
        self._check(params, context)
        checks.check_send(params, self._card, context)

    def _scope(self, context: ServerCallContext) -> Scope:
        return Scope(agent=self.agent.name, tenant=context.tenant, owner=context.user.user_name)

    async def _read(
        self, task_id: str, context: ServerCallContext, limits: SendMessageConfiguration | GetTaskRequest | None
    ) -> Task:
        return (await self._kept.read(self._scope(context), task_id, history_length=_history_length(limits))).task


def _history_length(limits: SendMessageConfiguration | GetTaskRequest | None) -> int | None:
    """How much of the history a request wants; None: all."""
    return limits.history_length if limits is not None and limits.HasField("history_length") else None
