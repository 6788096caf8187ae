"""Agent under test, which is an agent of an A2A object, a function, an executor or a Celery task."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias

from a2a.server.agent_execution import AgentExecutor
from a2a.types import AgentCapabilities, AgentCard, AgentSkill
from celery import Celery, Task

from ..agents import Agent
from ..app import A2A, EXTENSION_KEY, import_modules
from ..errors import ConfigError
from ..integrations.celery import resolve_proxy

Target: TypeAlias = A2A | Task | AgentExecutor | type[AgentExecutor] | Callable[..., Any]
"""Agent to test; see `AgentTester`."""


def a2a_and_agent(target: Target, name: str | None, options: dict[str, Any]) -> tuple[A2A, Agent]:
    """Return the A2A object and the agent for the arguments `target` and `name` of `AgentTester`.

    Raises:
        ConfigError: `target` is not an agent, the A2A object has no such agent, an option is invalid, or `options` are
            set for an agent that is already registered.
    """
    target = resolve_proxy(target)
    options = dict(options)
    if isinstance(target, A2A):
        import_modules(target.celery)
        return target, _registered_agent(target, name, options)
    if isinstance(target, Task):
        return _exposed_agent(target, name, options)
    a2a = A2A(Celery("a2a-tester", broker="memory://", set_as_current=False))
    if isinstance(target, AgentExecutor) or (inspect.isclass(target) and issubclass(target, AgentExecutor)):
        agent_name = name or "agent"
        return a2a, a2a.add_agent(options.pop("card", None) or _card(agent_name), target, name=agent_name, **options)
    if not callable(target):
        raise ConfigError(
            f"{target!r} is not an agent: pass an A2A object, a function, an AgentExecutor or a Celery task"
        )
    agent_name = name or getattr(target, "__name__", "agent").strip("_").lower()
    a2a.agent(agent_name, description=options.pop("description", None) or agent_name, **options)(target)
    return a2a, a2a.agents[agent_name]


def _registered_agent(a2a: A2A, name: str | None, options: dict[str, Any]) -> Agent:
    names = ", ".join(a2a.agents) or "none"
    if options:
        raise ConfigError(f"{min(options)}: the agent is registered already: set its options where it is registered")
    if name is None and len(a2a.agents) != 1:
        raise ConfigError(f"the app does not have exactly one agent: pass AgentTester(a2a, name); known: {names}")
    if name is not None and name not in a2a.agents:
        raise ConfigError(f"no agent {name!r} in this app; known: {names}")
    return a2a.agents[name] if name is not None else next(iter(a2a.agents.values()))


def _exposed_agent(task: Task, name: str | None, options: dict[str, Any]) -> tuple[A2A, Agent]:
    a2a = getattr(task.app, EXTENSION_KEY, None) or A2A(task.app)
    for agent in a2a.agents.values():
        if agent.code is task:
            return a2a, _registered_agent(a2a, agent.name, options)
    return a2a, a2a.expose(task, name=name, **options)


def _card(name: str) -> AgentCard:
    return AgentCard(
        name=name,
        description=name,
        version="1.0.0",
        capabilities=AgentCapabilities(streaming=True),
        default_input_modes=["text/plain", "application/json"],
        default_output_modes=["text/plain", "application/json"],
        skills=[AgentSkill(id=name, name=name, description=name, tags=["test"])],
    )
