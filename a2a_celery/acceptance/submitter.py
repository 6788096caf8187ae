"""Submission of a message without a gateway. The message is validated as in SendMessage, its task is stored, and its
run is published."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from uuid import uuid4

from a2a.types import SendMessageRequest
from a2a.utils.errors import A2AError, UnsupportedOperationError

from ..agents import Agent
from ..caller import Caller
from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher, RunOptions
from ..errors import BrokerUnavailable, ConfigError, StoreUnavailable
from ..lifecycle.outcomes import CANCELED_BY_SCHEDULE
from ..settings import Settings
from ..store import AsyncStore, Keys, Scope
from ..store.admin.usage import MemoryWatermark
from ..store.runs.commands import RunRef
from ..store.runs.publication import mark_published
from ..store.tasks.commands import TaskLimits, acquire_request, read_task, request_cancel
from ..store.tasks.results import (
    CanceledNow,
    Conflict,
    Created,
    Known,
    Limited,
    NotCreated,
    TaskIdConflict,
    TickRepeated,
    TickSkipped,
    TooDeep,
    WaitsForItself,
)
from ..store.tasks.schedules import Tick, earlier_tasks
from ..telemetry.logs import about
from ..telemetry.names import Action
from .errors import MAX_ID_LENGTH, invalid, not_found
from .limits import LIMIT_TEXTS, REQUESTS, error_of_limit, limit_error, task_limits_of
from .new_tasks import BrokerMessages, NewTasks, built
from .validation import check_media_types, check_message, check_values, require_extensions, require_fields

logger = logging.getLogger(__name__)


class TaskSubmitter:
    """Submitter of messages to the agents of an app, on one event loop."""

    def __init__(
        self,
        agents: Mapping[str, Agent],
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        publisher: Publisher,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.agents = agents
        self._settings = settings
        self._store = store
        self._keys = keys
        self._publisher = publisher
        self._clock = clock
        self._messages = BrokerMessages(publisher, settings, clock)
        self._limits = task_limits_of(settings, agents)
        self._watermark = MemoryWatermark(store, settings.store_watermark, clock)
        self._new_tasks: dict[str, NewTasks] = {}

    async def submit(
        self,
        agent_name: str,
        params: SendMessageRequest,
        caller: Caller,
        *,
        task_id: str = "",
        is_awaited: bool = False,
    ) -> tuple[str, str]:
        """Create a task and publish its run. A run that the broker does not accept is published by a watcher.

        If the message was already accepted within the agent's `idempotency_window`, no second task is created.

        Args:
            agent_name: Name of the agent.
            params: Request with the message.
            caller: Caller who will own the task.
            task_id: Id of the new task, or "" for a new id. A repeated call with the same id creates no second task.
                The id identifies the call: the message of a repeated call may differ, and is not stored.
            is_awaited: True if the parent of the task waits until the task has ended or waits for its client. A task
                that would then wait for itself in its context is refused.

        Returns:
            The ids of the task and of its context.

        Raises:
            ConfigError: The app has no agent with this name.
            A2AError: The message is invalid or exceeds a limit, as in SendMessage, or a task of another agent, tenant
                or owner has the id.
            StoreUnavailable: The store is unavailable. The task may have been created.
        """
        match answer := await self._create(agent_name, params, caller, task_id or str(uuid4()), is_awaited=is_awaited):
            case Created(task):
                return task.id, task.context_id
            case Known():
                scope = Scope(agent_name, caller.tenant, caller.user)
                head = read_task(self._keys, scope, answer.task_id, history_length=0, artifacts=False)
                snapshot = await self._store.run(head)
                if snapshot is None:
                    raise not_found(answer.task_id)
                return answer.task_id, snapshot[0].context_id
            case _:
                raise self._error_of(agent_name, answer)

    async def submit_tick(
        self, agent_name: str, params: SendMessageRequest, caller: Caller, tick: Tick
    ) -> Created | TickSkipped | TickRepeated:
        """Create the task of a tick, publish its run, and apply the overlap rule of the schedule.

        A repeated call does not create a second task. Concurrent calls for the same tick create one task.

        Raises:
            ConfigError: The app has no agent with this name.
            A2AError: The message is invalid or exceeds a limit. The tick can be submitted again.
            StoreUnavailable: The store is unavailable. The task may have been created, and the call can be repeated.
        """
        match answer := await self._create(agent_name, params, caller, tick.task_id(self._keys), tick):
            case Created():
                if tick.overlap == "cancel":
                    await self._cancel_earlier_tasks(tick)
                return answer
            case TickSkipped() | TickRepeated():
                return answer
            case _:
                raise self._error_of(agent_name, answer)

    def agent(self, name: str) -> Agent:
        """Return the agent with this name.

        Raises:
            ConfigError: The app has no such agent.
        """
        if name not in self.agents:
            names = ", ".join(sorted(self.agents)) or "none"
            raise ConfigError(f"no agent {name!r} in this app; known: {names}")
        return self.agents[name]

    async def _create(
        self,
        agent_name: str,
        params: SendMessageRequest,
        caller: Caller,
        task_id: str,
        tick: Tick | None = None,
        *,
        is_awaited: bool = False,
    ) -> Created | NotCreated:
        agent = self.agent(agent_name)
        self._check(agent, params, caller)
        scope = Scope(agent_name, caller.tenant, caller.user)
        await self._count_request(scope)
        limits = await self._task_limits()
        new = self._new_tasks_of(agent).of(
            params,
            caller,
            scope,
            task_id,
            limits=limits,
            messages=self._messages,
            tick=tick,
            is_awaited=is_awaited,
        )
        answer = await self._store.run(await built(params, new.create))
        if isinstance(answer, Created) and not answer.is_blocked and not answer.is_published:
            if new.has_message:
                self._messages.record_refusal()
            await self._publish(agent_name, RunRef(task_id, 1), new.options)
        return answer

    def _error_of(self, agent_name: str, answer: NotCreated) -> A2AError:
        match answer:
            case Limited():
                return limit_error(answer)
            case Conflict() | TooDeep() | WaitsForItself() | TaskIdConflict():
                return self._new_tasks_of(self.agent(agent_name)).refusal(answer)
            case _:
                raise AssertionError(answer)

    async def _cancel_earlier_tasks(self, tick: Tick) -> None:
        for task in await self._store.run(earlier_tasks(self._keys, tick)):
            cancel = request_cancel(self._keys, task.scope, task.task_id, task.context_id, text=CANCELED_BY_SCHEDULE)
            result = await self._store.run(cancel)
            fields = about(Action.CANCEL_REQUESTED, agent=task.scope.agent, task=task.task_id)
            text = "task %s: cancellation requested by the next tick of the schedule %s: %s"
            logger.info(text, task.task_id, tick.schedule, type(result).__name__, extra=fields)
            if isinstance(result, CanceledNow):
                self._publisher.revoke_canceled_soon(task.task_id, result.run, result.canvas)

    def _check(self, agent: Agent, params: SendMessageRequest, caller: Caller) -> None:
        require_fields(params)
        if params.message.task_id:
            raise UnsupportedOperationError("submit creates tasks: send a message to a task with SendMessage")
        for name, value in (("tenant", caller.tenant), ("owner", caller.user)):
            if len(value) > MAX_ID_LENGTH:
                raise invalid(name, f"At most {MAX_ID_LENGTH} characters.")
        require_extensions(agent.card, caller.extensions)
        if params.ByteSize() > self._settings.max_request_bytes:
            raise invalid("message", f"At most {self._settings.max_request_bytes} bytes (a2a_max_request_bytes).")
        check_message(params.message)
        check_values(params)
        check_media_types(params.message, agent.card)

    def _new_tasks_of(self, agent: Agent) -> NewTasks:
        if agent.name not in self._new_tasks:
            self._new_tasks[agent.name] = NewTasks(agent, self._settings, self._keys)
        return self._new_tasks[agent.name]

    async def _task_limits(self) -> TaskLimits | None:
        nearly_full = await self._watermark.is_reached()
        return TaskLimits(tuple(self.agents), memory=True) if nearly_full else self._limits

    async def _count_request(self, scope: Scope) -> None:
        per_second = self._settings.owner_requests_per_second
        if per_second is None:
            return
        burst = self._settings.owner_request_burst or max(1, ceil(per_second))
        wait = await self._store.run(acquire_request(self._keys, scope, per_second=per_second, burst=burst))
        if wait > 0:
            raise error_of_limit(REQUESTS, LIMIT_TEXTS[REQUESTS], ceil(wait))

    async def _publish(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Publish a run and record it as published. A run that is scheduled for much later or is not accepted by the
        broker is published by a watcher."""
        now = self._clock.now()
        if options.publish_delay(now):
            return
        delay_us = options.republish_in(now, self._settings)
        try:
            await self._publisher.publish_async(agent, ref.task_id, ref.run, options.to_json())
            await self._store.run(mark_published(self._keys, ref, delay_us=delay_us))
        except (BrokerUnavailable, StoreUnavailable) as e:
            logger.warning("run %s will be published by the watcher: %s", ref.name, e)
