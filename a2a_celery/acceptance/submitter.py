"""Submission of a message without a gateway: validate it as SendMessage does, store its task, and publish its run."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from math import ceil
from uuid import uuid4

from a2a.types import SendMessageRequest
from a2a.utils.errors import UnsupportedOperationError
from a2a.utils.input_mode_validator import validate_input_modes

from ..agents import Agent
from ..caller import Caller
from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch import Publisher, RunOptions
from ..errors import BrokerUnavailable, ConfigError, StoreUnavailable
from ..settings import Settings
from ..store import AsyncStore, Keys, Scope
from ..store.admin.usage import MemoryWatermark
from ..store.runs.commands import RunRef, mark_published
from ..store.tasks.commands import TaskLimits, acquire_request, read_task
from ..store.tasks.results import Conflict, Created, Known, Limited, TooDeep
from .errors import MAX_ID_LENGTH, invalid, not_found
from .limits import LIMIT_TEXTS, REQUESTS, error_of_limit, limit_error, task_limits_of
from .new_tasks import BrokerMessages, NewTasks
from .validation import check_message, check_values, require_extensions, require_fields

logger = logging.getLogger(__name__)


class TaskSubmitter:
    """Creator of tasks for the agents of an app, on one event loop."""

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
        self, agent_name: str, params: SendMessageRequest, caller: Caller, *, task_id: str = ""
    ) -> tuple[str, str]:
        """Create a task and publish its run. A run that the broker does not accept is published by a watcher.

        A message that was already accepted within the agent's `idempotency_window` creates no task.

        Args:
            task_id: Id of the new task, or "" for a new id. A repeated call with an id creates no second task.

        Returns:
            The id of the task of the message, and the id of its context.

        Raises:
            ConfigError: The app has no agent with this name.
            A2AError: The message is invalid or exceeds a limit, as in SendMessage.
            StoreUnavailable: The store is unavailable. The task may have been created.
        """
        agent = self.agent(agent_name)
        self._check(agent, params, caller)
        scope = Scope(agent_name, caller.tenant, caller.user)
        await self._count_request(scope)
        task_id = task_id or str(uuid4())
        limits = await self._task_limits()
        new = self._new_tasks_of(agent).of(params, caller, scope, task_id, limits=limits, messages=self._messages)
        match answer := await self._store.run(new.create):
            case Created(task, _, is_blocked, is_published):
                if not is_blocked and not is_published:
                    if new.has_message:
                        self._messages.record_refusal()
                    await self._publish(agent_name, RunRef(task_id, 1), new.options)
                return task_id, task.context_id
            case Known():
                head = read_task(self._keys, scope, answer.task_id, history_length=0, artifacts=False)
                stored = await self._store.run(head)
                if stored is None:
                    raise not_found(answer.task_id)
                return answer.task_id, stored[0].context_id
            case Limited():
                raise limit_error(answer)
            case Conflict() | TooDeep():
                raise self._new_tasks_of(agent).refusal(answer)

    def agent(self, name: str) -> Agent:
        """Return an agent of the app.

        Raises:
            ConfigError: There is no agent with this name.
        """
        if name not in self.agents:
            known = ", ".join(sorted(self.agents)) or "none"
            raise ConfigError(f"no agent {name!r} in this app; known: {known}")
        return self.agents[name]

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
        validate_input_modes(params.message, agent.card)

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
        """Publish a run, and record it as published. A watcher publishes a run that is scheduled for much later."""
        now = self._clock.now()
        if options.publish_delay(now):
            return
        again_us = options.republish_in(now, self._settings)
        try:
            await self._publisher.publish_async(agent, ref.task_id, ref.run, options.to_json())
            await self._store.run(mark_published(self._keys, ref, again_us=again_us))
        except (BrokerUnavailable, StoreUnavailable) as e:
            logger.warning("run %s will be published by the watcher: %s", ref.name, e)
