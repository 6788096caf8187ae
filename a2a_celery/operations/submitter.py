"""Submission of a message without a gateway. The message is validated as in SendMessage, its task is stored, and its
run is published."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from typing import TypeVar
from uuid import uuid4

from a2a.types import SendMessageRequest
from a2a.utils.errors import UnsupportedOperationError
from google.protobuf.struct_pb2 import Struct

from ..agents import Agent
from ..caller import Caller
from ..errors import ConfigError
from ..lifecycle.references import Scope
from ..lifecycle.refusals import Refusal
from ..store.tasks.commands import acquire_request, read_task
from ..store.tasks.replies import Accepted, Known
from ..store.verbs import Section
from .errors import MAX_ID_LENGTH, invalid, not_found
from .limits import LIMIT_TEXTS, REQUESTS, error_of, error_of_limit
from .requests import check_request, require_fields
from .service import TaskService

R = TypeVar("R")


class TaskSubmitter:
    """Submitter of messages to the agents of an app, on one event loop."""

    def __init__(self, service: TaskService) -> None:
        self.service = service
        self.agents = service.agents
        self._settings = service.settings
        self._store = service.store
        self._keys = service.keys

    async def submit(
        self,
        agent_name: str,
        params: SendMessageRequest,
        caller: Caller,
        *,
        task_id: str = "",
        sections: Sequence[Section[Refusal]] = (),
    ) -> tuple[str, str]:
        """Create a task and publish its run. A run that the broker does not accept is published by a watcher.

        If the message repeats an accepted message, no second task is created.

        Args:
            agent_name: Name of the agent.
            params: Request with the message.
            caller: Caller who will own the task.
            task_id: Id of the new task, or "" for a new id. A repeated call with the same id creates no second task.
                The id identifies the call: the message of a repeated call may differ, and is not stored.
            sections: See `TaskService.create`.

        Returns:
            The ids of the task and of its context.

        Raises:
            ConfigError: The app has no agent with this name.
            A2AError: The message is invalid or exceeds a limit, as in SendMessage, or a task of another agent, tenant
                or owner has the id.
            StoreUnavailable: The store is unavailable. The task may have been created.
        """
        task_id = task_id or str(uuid4())
        reply = await self.create(agent_name, params, caller, task_id, sections=sections)
        assert not isinstance(reply, Refusal)
        if isinstance(reply, Accepted):
            return reply.task.id, reply.task.context_id
        scope = caller.scope(agent_name)
        head = read_task(self._keys, scope, reply.task_id, history_length=0, artifacts=False)
        snapshot = await self._store.run(head)
        if snapshot is None:
            raise not_found(reply.task_id)
        return reply.task_id, snapshot[0].context_id

    async def create(
        self,
        agent_name: str,
        params: SendMessageRequest,
        caller: Caller,
        task_id: str,
        *,
        metadata: Struct | None = None,
        sections: Sequence[Section[R]] = (),
    ) -> Accepted | Known | R:
        """Create a task and publish its run; see `submit` and `TaskService.create`.

        Returns:
            The accepted message, `Known` if the message was accepted before, or the reply of a section.
        """
        agent = self.agent(agent_name)
        self._check(agent, params, caller)
        await self._count_request(caller.scope(agent_name))
        reply = await self.service.create(
            agent,
            params,
            caller,
            task_id,
            metadata=metadata,
            sections=sections,
        )
        if isinstance(reply, Refusal):
            raise error_of(reply)
        return reply

    def agent(self, name: str) -> Agent:
        """Return the agent with this name.

        Raises:
            ConfigError: The app has no such agent.
        """
        if name not in self.agents:
            names = ", ".join(sorted(self.agents)) or "none"
            raise ConfigError(f"no agent {name!r} in this app; known: {names}")
        return self.agents[name]

    def check(self, agent_name: str, params: SendMessageRequest, caller: Caller) -> None:
        """Check a message as far as this does not depend on the store.

        Raises:
            ConfigError: The app has no agent with this name.
            A2AError: The message is invalid.
        """
        agent = self.agent(agent_name)
        self._check(agent, params, caller)
        self.service.new_tasks(agent).call_of([params.message])

    def _check(self, agent: Agent, params: SendMessageRequest, caller: Caller) -> None:
        require_fields(params)
        if params.message.task_id:
            raise UnsupportedOperationError("submit creates tasks: send a message to a task with SendMessage")
        for name, value in (("tenant", caller.tenant), ("owner", caller.user)):
            if len(value) > MAX_ID_LENGTH:
                raise invalid(name, f"At most {MAX_ID_LENGTH} characters.")
        if params.ByteSize() > self._settings.max_request_bytes:
            raise invalid("message", f"At most {self._settings.max_request_bytes} bytes (a2a_max_request_bytes).")
        check_request(params, agent.card, caller.extensions)

    async def _count_request(self, scope: Scope) -> None:
        per_second = self._settings.owner_requests_per_second
        if per_second is None:
            return
        burst = self._settings.owner_request_burst or max(1, ceil(per_second))
        wait = await self._store.run(acquire_request(self._keys, scope, per_second=per_second, burst=burst))
        if wait > 0:
            raise error_of_limit(REQUESTS, LIMIT_TEXTS[REQUESTS], ceil(wait))
