"""`Turn.call`, which calls another agent and waits for its task without occupying a worker slot, and its blocking
variant."""

from __future__ import annotations

from typing import Any

from ...execution.agents.running_agent import loop_method
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from .calls import begin_call


class CallMethods(TurnMembers):
    """Methods of `Turn` for calls to other agents."""

    @loop_method
    async def call(self, agent: Any, message: Any, *, context_id: str | None = None, tenant: str | None = None) -> Any:
        """Call another agent and return the result of its task.

        The task is a child of this task and is cancelled with it. A later run of the turn finds the same child, or
        receives the recorded result. While an agent of this app works, the run ends and frees its slot, as in `sleep`.
        The run keeps its slot while it waits for a remote agent. See ``docs/durable-work.md``.

        Args:
            agent: Name of an agent of this app, URL of an agent, or `RemoteAgent`. An agent of this app is called
                without HTTP, on behalf of this task's caller.
            message: Text, bytes, JSON data, parts or a complete message.
            context_id: Id of the child's context, or None for a new context.
            tenant: Tenant of the request if `agent` is a URL, or None.

        Returns:
            The ``client.Result`` of the completed child, or of the message of a remote agent that created no task.

        Raises:
            ChildFailed: The child ended in a state other than COMPLETED.
            ChildInterrupted: The child waits for input or an authorization. This is a subclass of `ChildFailed`.
            ChildRefused: The agent refused the message, or the child would wait for itself in its context.
            SuspendRun: The run ends. Do not catch this exception, which is not an `Exception`.
            RemoteError: A remote agent is unreachable.
            ConfigError: There is no such agent, or the calling agent is a plain Celery task.
            StepError: The result is too large to be recorded.
            TypeError: `message` cannot be converted to an A2A message.
        """
        self.stop_if_asking()
        return await begin_call(self._agent, agent, message, context_id, tenant).result()


class BlockingCallMethods(BlockingTurnMembers):
    """Blocking variants of `CallMethods`."""

    def call(self, agent: Any, message: Any, *, context_id: str | None = None, tenant: str | None = None) -> Any:
        """See `Turn.call`."""
        self._turn.stop_if_asking()
        return self._wait_for(begin_call(self._turn._agent, agent, message, context_id, tenant).result)
