"""Hooks: functions that an app's workers call around the runs of the app's agents.

The hooks of a run are opened as an `AppFeature`. An app without hooks has no object of this feature in its workers.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any

from ...errors import ConfigError
from ..feature import AppFeature

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from ...execution.events.activities import Execution
    from ...execution.events.queue import RunEventQueue
    from ...execution.open_run import OpenRun
    from ..feature import RunFeature

HOOK_NAMES = ("before_run", "after_run", "on_event", "on_transition")


class HookMethods:
    """Methods of `A2A` for hooks."""

    if TYPE_CHECKING:  # member of `A2A`
        app_features: list[AppFeature]

    def __init__(self) -> None:
        super().__init__()
        self._hooks = Hooks()

    def before_run(self, *of: Any) -> Any:
        """Register a function, async or sync, that is called with the `RunInfo` of each run before the agent.

        ``@a2a.before_run`` applies to all agents, and ``@a2a.before_run("name", …)`` to the named agents. The function
        may end the run by raising `Rejected`, `Failed`, `InputRequired` or `AuthRequired`, and may add to
        `RunInfo.metadata`. Any other exception is handled like an exception of the agent.

        Raises:
            ConfigError: The hook is not a function or is a generator function, or the decorator is called without the
                name of an agent.
        """
        return self._register("before_run", of)

    def after_run(self, *of: Any) -> Any:
        """Register a function that is called with the `RunInfo` of each run after the agent, before the final status.

        The function may add to `RunInfo.metadata`. Exceptions are logged and ignored. See `before_run`.
        """
        return self._register("after_run", of)

    def on_event(self, *of: Any) -> Any:
        """Register a function that is called with the `RunInfo` and each event of an agent.

        The events include the final status of the run. The function may change the event in place and return None, or
        return a different event to send. The function cannot change the state of the final status. If the function
        raises an exception, the event is not sent and the run fails. A sync function must not block. See `before_run`.
        """
        return self._register("on_event", of)

    def on_transition(self, *of: Any) -> Any:
        """Register a function that is called with the `RunInfo` and each `Transition` of a run's execution.

        A sync function is called immediately and must not block. An async function is called shortly afterwards, in the
        order of the transitions. Exceptions are logged. See `before_run`.
        """
        return self._register("on_transition", of)

    def _register(self, kind: str, of: tuple[Any, ...]) -> Any:
        if self._hooks not in self.app_features:
            self.app_features.append(self._hooks)
        return self._hooks.decorate(kind, of)


class Hooks(AppFeature):
    """Hooks of an app.

    Attributes:
        registered: Kind, agents and function of each hook, in the order of their definition. A hook without names of
            agents is for all agents.
    """

    def __init__(self) -> None:
        self.registered: list[tuple[str, frozenset[str], Callable[..., Any]]] = []

    def decorate(self, kind: str, of: tuple[Any, ...]) -> Any:
        """Register a hook.

        Args:
            kind: Kind of the hook, one of `HOOK_NAMES`.
            of: The function, for a hook of all agents, or the names of the hook's agents.

        Returns:
            The function, or a decorator if `of` contains names.

        Raises:
            ConfigError: The hook is not a function or is a generator function, `of` is empty, or a name is not a
                string. For a decorator, the function is checked when the decorator is applied.
        """
        if len(of) == 1 and callable(of[0]):
            return self._add(kind, frozenset(), of[0])
        if not of or not all(isinstance(name, str) for name in of):
            raise ConfigError(f"@a2a.{kind}: write it without parentheses, or name agents: @a2a.{kind}('name')")
        return lambda function: self._add(kind, frozenset(of), function)

    def of(self, kind: str, agent: str) -> tuple[Callable[..., Any], ...]:
        """Return the hooks of `kind` for `agent`, in the order of their definition."""
        return tuple(f for name, agents, f in self.registered if name == kind and (not agents or agent in agents))

    def open_run(self, run: OpenRun, events: RunEventQueue, execution: Execution) -> RunFeature | None:
        if not any(self.of(kind, run.agent.name) for kind in HOOK_NAMES):
            return None
        from .run_hooks import RunHooks  # noqa: PLC0415 -- the SDK

        return RunHooks(self, run, events, execution)

    def require_agents(self, agents: Container[str]) -> None:
        for kind, names, function in self.registered:
            unknown = sorted(name for name in names if name not in agents)
            if unknown:
                raise ConfigError(f"@a2a.{kind} of {_name(function)}: there is no agent {unknown[0]!r}")

    def _add(self, kind: str, names: frozenset[str], function: Any) -> Any:
        if not callable(function) or inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigError(
                f"@a2a.{kind} of {_name(function)}: pass a function or an async function, not a generator"
            )
        self.registered.append((kind, names, function))
        return function


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
