"""Interface between `Turn.call` and the code that starts child tasks and waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from a2a.types import Part

from ..caller import Caller
from ..errors import ConfigError


class CallResult(Protocol):
    """Result of a child task: the attributes of ``client.Result`` that a run reads."""

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
    """Call to another agent with `Turn.call`.

    Attributes:
        target: Name of an agent of the app, URL of an agent, or ``client.RemoteAgent``.
        content: Content of the message.
        context_id: Id of the child's context, or "" for a new context.
        key: UUID that is the same in every run of the turn.
        caller: Caller of the parent. A called agent of the app works on behalf of the same caller.
        parent_id: Id of the parent.
        tenant: Tenant of the request to a URL, or "".
    """

    target: Any
    content: Any
    context_id: str
    key: str
    caller: Caller
    parent_id: str
    tenant: str = ""

    @property
    def is_remote(self) -> bool:
        """True if the agent is called over HTTP."""
        return not isinstance(self.target, str) or "://" in self.target

    @property
    def agent(self) -> str:
        """Name or URL of the agent."""
        return name_of(self.target)


class AgentCaller(Protocol):
    """Client that starts child tasks and waits for their results."""

    async def start(self, call: ChildCall) -> CallResult:
        """Start the child, or find the child that an earlier run started.

        Returns:
            The current state of the child, or the message of an agent that replies without a task.
        """
        ...

    async def result(self, call: ChildCall, task_id: str) -> CallResult:
        """Wait until the child is terminal or interrupted, and return its result."""
        ...

    def encode(self, result: CallResult) -> Mapping[str, Any]:
        """Return `result` as a JSON object."""
        ...

    def decode(self, data: Mapping[str, Any]) -> CallResult:
        """Return the result that `encode` has converted to `data`."""
        ...


def name_of(target: Any, tenant: str = "") -> str:
    """Return the name under which the journal records a call to `target`.

    Raises:
        ConfigError: `target` is neither a name, nor a URL, nor a RemoteAgent. Or `tenant` is set, and `target` is not a
            URL.
    """
    if tenant and not (isinstance(target, str) and "://" in target):
        raise ConfigError(
            f"turn.call(…, tenant={tenant!r}): only for the URL of an agent. An agent of this app is called in the "
            "tenant of the turn's caller; for a RemoteAgent, use RemoteAgent(url, tenant=…)"
        )
    name = target if isinstance(target, str) else getattr(target, "url", None)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"turn.call({target!r}, …): the name of an agent of this app, a URL, or a RemoteAgent")
    return name
