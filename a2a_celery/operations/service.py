"""Service that changes stored tasks, for gateways, workers, watchers, commands and Python callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from uuid import uuid4

from a2a.types import SendMessageRequest, Task
from google.protobuf.struct_pb2 import Struct

from ..agents import Agent
from ..caller import Caller
from ..dispatch import Publisher, RunOptions
from ..features.feature import RunInThread, ServiceFeature, ValidationRequired
from ..features.sections import SERVICE_FEATURES
from ..lifecycle.references import RunRef, Scope
from ..lifecycle.refusals import Refusal
from ..settings import Settings
from ..store import AsyncStore, Keys
from ..store.admin.usage import MemoryWatermark
from ..store.blobs.blob_store import blobs_of
from ..store.tasks.commands import ReplyChannel, continue_task, read_next_run, request_cancel
from ..store.tasks.replies import Accepted, CanceledNow, CancelRequested, Known
from ..store.tasks.signals import SignalResumed, SignalStored, send_signal
from ..store.verbs import Section
from .publication import RunPublisher
from .requests import NewTasks, built, run_options, sections_for_message, with_ids
from .signals import Signal

R = TypeVar("R")
T = TypeVar("T")

BROKER_LIMIT = 10.0
"""Seconds for which `run_sync` waits for the broker."""


@dataclass(frozen=True, slots=True)
class Signalled:
    """Accepted signal. `has_resumed` is True if a run waited for the signal."""

    has_resumed: bool


class TaskService:
    """Service that changes stored tasks and publishes the runs that follow. Use a service on one event loop.

    Methods return a `Refusal` if the task does not allow what the caller asks for.

    Args:
        agents: Agents of the app.
        settings: Settings of the fleet.
        store: Client of the store.
        keys: Keys of the fleet.
        runs: Publisher of the runs that follow.
    """

    def __init__(
        self,
        agents: Mapping[str, Agent],
        settings: Settings,
        store: AsyncStore,
        keys: Keys,
        runs: RunPublisher,
    ) -> None:
        self.agents = agents
        self.settings = settings
        self.store = store
        self.keys = keys
        self.runs = runs
        self._new_tasks: dict[str, NewTasks] = {}
        self._watermark = MemoryWatermark(store, settings.store_watermark, runs.clock)
        opened = (open_feature(settings, keys, agents, runs) for open_feature in SERVICE_FEATURES)
        self._features = [feature for feature in opened if feature is not None]

    def new_tasks(self, agent: Agent) -> NewTasks:
        """Return the factory of the tasks of an agent.

        Raises:
            ConfigError: An option of the agent does not fit the settings.
        """
        if agent.name not in self._new_tasks:
            self._new_tasks[agent.name] = NewTasks(agent, self.settings, self.keys)
        return self._new_tasks[agent.name]

    async def create(
        self,
        agent: Agent,
        params: SendMessageRequest,
        caller: Caller,
        task_id: str,
        *,
        reply_channel: ReplyChannel | None = None,
        metadata: Struct | None = None,
        sections: Sequence[Section[R]] = (),
    ) -> Accepted | Known | R | Refusal:
        """Create a task for a valid message without a task id, and publish its first run.

        Args:
            agent: Agent of the task.
            params: Request with the message.
            caller: Caller who will own the task.
            task_id: Id of the new task.
            reply_channel: Notification channel of the calling gateway, or None.
            metadata: Metadata of the task, or None.
            sections: Sections of the caller, which come before the sections of features for the message.

        Returns:
            The accepted message, `Known` if the message or the id was accepted before, or the reply of a section.

        Raises:
            InvalidParamsError: The message is not a valid call to the agent's Celery task, or its schedule is invalid.
            StoreUnavailable: The store is unavailable. The task may have been created.
        """
        scope = caller.scope(agent.name)
        new = self.new_tasks(agent).of(
            params,
            caller,
            task_id,
            partial(self._sections_for_run, agent.name),
            is_nearly_full=await self._watermark.is_reached(),
            reply_channel=reply_channel,
            metadata=metadata,
            sections=[*self._sections_for_scope(scope), *sections],
        )
        reply = await self.store.run(await built(params, new.create))
        if isinstance(reply, Accepted):
            await self._publish(agent, reply, new.options, new.run_sections)
        return reply

    def _sections_for_scope(self, scope: Scope) -> list[Section[Any]]:
        sections = (feature.section_for_scope(scope) for feature in self._features)
        return [section for section in sections if section is not None]

    def _sections_for_run(self, agent: str, ref: RunRef, options: RunOptions) -> dict[ServiceFeature, Section[Any]]:
        pairs = ((feature, feature.section_for_run(agent, ref, options)) for feature in self._features)
        return {feature: section for feature, section in pairs if section is not None}

    async def next_run(self, task_id: str) -> int | None:
        """Return the number of the run that the next message to a task begins, or None if `continue_` does not need the
        number."""
        if not any(feature.acts_on_runs for feature in self._features):
            return None
        return await self.store.run(read_next_run(self.keys, task_id))

    async def continue_(
        self,
        agent: Agent,
        params: SendMessageRequest,
        caller: Caller,
        task: Task,
        *,
        next_run: int | None = None,
        sections: Sequence[Section[Known | Refusal]] = (),
        run_in_thread: RunInThread,
    ) -> Accepted | Known | Refusal:
        """Add a valid message to a task, and publish the run that it begins.

        Args:
            agent: Agent of the task.
            params: Request with the message.
            caller: Caller who owns the task.
            task: Stored task. For an agent that is a plain Celery task, with all messages.
            next_run: Result of `next_run`.
            sections: Sections of the caller, which come before the sections of features.
            run_in_thread: Function that runs the validation that a section requires. An invalid message is not stored.

        Raises:
            InvalidParamsError: The message is not a valid call to the agent's Celery task, or its schedule is invalid.
            StoreUnavailable: The store is unavailable. The message may have been accepted.
        """
        new_tasks, scope = self.new_tasks(agent), caller.scope(agent.name)
        request = with_ids(params, caller.tenant, task.id, task.context_id)
        options = run_options(agent, request, caller, new_tasks.next_call(task, request.message))
        run_sections: Mapping[ServiceFeature, Section[Any]] = {}
        if next_run is not None:
            run_sections = self._sections_for_run(agent.name, RunRef(task.id, next_run), options)
        operation = partial(
            continue_task,
            self.keys,
            scope,
            task.id,
            request,
            params.message.context_id,
            caller=caller.to_json(),
            nonce=uuid4().hex,
            options=options.to_json(),
            is_nearly_full=await self._watermark.is_reached(),
            max_bytes=self.settings.task_max_bytes,
            on_message=agent.on_message,
        )
        all_sections: list[Section[Known | Refusal | ValidationRequired]] = [
            *self._sections_for_scope(scope),
            *sections,
            *sections_for_message(agent, self.keys, scope, params),
            *run_sections.values(),
        ]
        reply = await self.store.run(await built(request, partial(operation, sections=all_sections)))
        while isinstance(reply, ValidationRequired):
            validated = await reply.validate(request.message, run_in_thread)
            all_sections = [validated, *(section for section in all_sections if type(section) is not type(validated))]
            reply = await self.store.run(await built(request, partial(operation, sections=all_sections)))
        if isinstance(reply, Accepted):
            await self._publish(agent, reply, options, run_sections if reply.run == next_run else {})
        return reply

    async def _publish(
        self, agent: Agent, accepted: Accepted, options: RunOptions, features: Iterable[ServiceFeature]
    ) -> None:
        """Publish the run that a message begins, unless the store has published the run or the run is blocked. Each of
        `features` has made a section for the run."""
        if accepted.run is None or accepted.is_blocked or accepted.is_published:
            return
        for feature in features:
            feature.run_not_published()
        await self.runs.publish(agent.name, RunRef(accepted.task.id, accepted.run), options)

    async def cancel(
        self, scope: Scope, task_id: str, context_id: str, *, text: str
    ) -> CanceledNow | CancelRequested | Refusal:
        """Cancel a task, or ask its worker to cancel the run. The method does not wait for the worker.

        Args:
            scope: Scope of the task.
            task_id: Id of the task.
            context_id: Id of the task's context.
            text: Text of the message in the CANCELED status, unless the agent sends its own message.
        """
        reply = await self.store.run(request_cancel(self.keys, scope, task_id, context_id, text=text))
        if isinstance(reply, CanceledNow):
            self.runs.messages.revoke_canceled_soon(task_id, reply.run, reply.canvas)
        return reply

    async def signal(self, task_id: str, signal: Signal, *, scope: Scope | None = None) -> Signalled | Refusal:
        """Send a signal to a task, and publish the run that the signal resumes.

        Args:
            task_id: Id of the task.
            signal: Signal to send.
            scope: Scope of the task of a client, whose limits apply, or None for a task of any owner.
        """
        operation = send_signal(
            self.keys,
            scope,
            task_id,
            name=signal.name,
            payload=signal.content,
            signal_id=signal.signal_id,
            is_nearly_full=scope is not None and await self._watermark.is_reached(),
            max_bytes=self.settings.task_max_bytes,
            agents_without_signals=[agent.name for agent in self.agents.values() if agent.kind != "function"],
            sections=() if scope is None else self._sections_for_scope(scope),
        )
        match await self.store.run(operation):
            case SignalResumed(ref, agent, options, is_blocked):
                if not is_blocked:
                    await self.runs.publish(agent, ref, RunOptions.from_json(options))
                return Signalled(has_resumed=True)
            case SignalStored():
                return Signalled(has_resumed=False)
            case refusal:
                return refusal


def run_sync(
    agents: Mapping[str, Agent],
    settings: Settings,
    publisher: Publisher,
    call: Callable[[TaskService], Coroutine[Any, Any, T]],
) -> T:
    """Return the result of `call` with a service on a new event loop, for callers without a loop.

    Messages that are being sent when `call` returns are sent first, for at most `BROKER_LIMIT` seconds.
    """

    async def run() -> T:
        keys, blobs = Keys(settings.key_prefix), blobs_of(settings)
        store = AsyncStore(settings.store_url, blobs, wait_replicas=settings.store_wait_replicas)
        runs = RunPublisher(publisher, store, keys, settings)
        try:
            result = await call(TaskService(agents, settings, store, keys, runs))
            await publisher.finish(BROKER_LIMIT)
            return result
        finally:
            await runs.aclose()
            await store.aclose()

    return asyncio.run(run())
