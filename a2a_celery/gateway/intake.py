"""Taking a message in: into the store first, then to the broker; from there on nothing is lost."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import SendMessageRequest, Task, TaskState
from a2a.utils.errors import UnsupportedOperationError

from ..agents import Agent
from ..caller import Caller
from ..config import Settings
from ..dispatch import Publisher
from ..store import AsyncStore, Keys, Scope, tasks
from ..store.runs import RunRef, mark_published
from .faults import invalid, not_found


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was accepted, and its task as of `version`; `ahead` turns begin before its own (see TurnWatch)."""

    task: Task
    version: int
    ahead: int
    new: bool


class Intake:
    """Takes messages for one agent."""

    def __init__(self, agent: Agent, settings: Settings, store: AsyncStore, keys: Keys, publisher: Publisher) -> None:
        self._agent = agent
        self._settings = settings
        self._store = store
        self._keys = keys
        self._publisher = publisher

    async def accept(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope, task_id: str) -> Sent:
        """Stores the message, as a new task `task_id` unless it names one, and has its run published.

        Raises:
            A2AError: the task it names can't take it.
        """
        if params.message.task_id:
            return await self._continue(params, context, scope)
        request = SendMessageRequest()
        request.CopyFrom(params)
        request.message.task_id = task_id
        request.message.context_id = request.message.context_id or str(uuid4())
        created = await self._store.run(
            tasks.create_task(
                self._keys,
                scope,
                task_id,
                request.message.context_id,
                request,
                caller=Caller.of(context).to_json(),
                retention=self._settings.retention,
            )
        )
        self._publish(task_id, 1)
        return Sent(created.task, created.version, ahead=0, new=True)

    async def _continue(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> Sent:
        task_id = params.message.task_id
        found = await self._store.run(tasks.read_task(self._keys, scope, task_id, history_length=0, artifacts=False))
        if found is None:
            raise not_found(task_id)
        request = SendMessageRequest()
        request.CopyFrom(params)
        request.message.context_id = found[0].context_id
        answer = await self._store.run(
            tasks.continue_task(
                self._keys,
                scope,
                task_id,
                request,
                params.message.context_id,
                caller=Caller.of(context).to_json(),
                nonce=uuid4().hex,
            )
        )
        match answer:
            case tasks.Missing():
                raise not_found(task_id)
            case tasks.WrongContext(context_id):
                raise invalid("message.context_id", f"The task belongs to context {context_id!r}: name that or none.")
            case tasks.Ended(state):
                raise UnsupportedOperationError(
                    f"The task has ended ({TaskState.Name(state)}) and takes no more messages: send this one without a "
                    "task id, with this task in referenceTaskIds",
                    data={"taskId": task_id},
                )
            case tasks.Full():
                raise UnsupportedOperationError(
                    f"{tasks.MAX_WAITING_TURNS} messages wait for this task already: send it again later",
                    data={"taskId": task_id},
                )
            case tasks.Begun(run, task, version):
                self._publish(task_id, run)
                return Sent(task, version, ahead=0, new=False)
            case tasks.Waiting(place, task, version):
                return Sent(task, version, ahead=place, new=False)

    def _publish(self, task_id: str, run: int) -> None:
        again_us = int(self._settings.redispatch_after * 1_000_000)

        async def remember() -> None:
            await self._store.run(mark_published(self._keys, RunRef(task_id, run), again_us=again_us))

        self._publisher.publish_soon(self._agent.name, task_id, run, remember)
