"""Hooks: functions that an app's workers call around the runs of the app's agents."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Container
from typing import Any, TypeVar, cast

from .errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])

HOOK_NAMES = ("before_run", "after_run", "on_event", "on_transition")


class Hooks:
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

    def has_any(self, agent: str) -> bool:
        return any(self.of(kind, agent) for kind in HOOK_NAMES)

    def require_agents(self, agents: Container[str]) -> None:
        """Check that the agents of all hooks exist.

        Raises:
            ConfigError: A hook was registered for an agent that is not in `agents`.
        """
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
        return cast(Any, function)


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or repr(function))
