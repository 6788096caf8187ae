"""Interface between `Turn.call` and the code that starts child tasks and waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from a2a.types import Part

from ..caller import Caller
from ..errors import ConfigError


class CallResult(Protocol):
    """Result of a child, as ``client.Result`` has it."""

    @property
    def state(self) -> int | None: ...

    @property
    def state_name(self) -> str: ...

    @property
    def stop_reason(self) -> str | None: ...

    @property
    def task_id(self) -> str: ...

    @property
    def parts(self) -> list[Part]: ...


@dataclass(frozen=True, slots=True)
class ChildCall:
    """Call of an agent.

    Attributes:
        target: Name of an agent of the app, URL of an agent, or a ``client.RemoteAgent``.
        content: Content of the message.
        context_id: Context of the child, or "" for a new one.
        key: UUID that is the same in every run of the turn.
        caller: Caller of the parent, for whom an agent of the app works.
        parent_id: Id of the parent.
    """

    target: Any
    content: Any
    context_id: str
    key: str
    caller: Caller
    parent_id: str

    @property
    def agent(self) -> str:
        """Name or URL of the agent."""
        return name_of(self.target)


class AgentCaller(Protocol):
    """Start of children, and wait for their results."""

    async def start(self, call: ChildCall) -> CallResult:
        """Start the child, or find the child that an earlier run started. Return its current state, or the message of
        an agent that answers without a task."""
        ...

    async def result(self, call: ChildCall, task_id: str) -> CallResult:
        """Wait until the child is terminal or interrupted, and return it."""
        ...

    def encode(self, result: CallResult) -> Mapping[str, Any]:
        """Return a result as JSON."""
        ...

    def decode(self, data: Mapping[str, Any]) -> CallResult:
        """Return the result that `encode` wrote."""
        ...


def name_of(target: Any) -> str:
    """Return the name of a target of `Turn.call`, under which the journal records the call.

    Raises:
        ConfigError: `target` is neither a name, nor a URL, nor a RemoteAgent.
    """
    name = target if isinstance(target, str) else getattr(target, "url", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"turn.call({target!r}, …): the name of an agent of this app, a URL, or a RemoteAgent")
    return name
