"""`A2A`: agents, settings and wiring; the only place that knows all the parts. No logic."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, TypeVar

from a2a.types import AgentCard, AgentSkill
from celery import Celery
from starlette.applications import Starlette

from .agents import Agent, ExecutorSource, card_for_function, name_from_card
from .config import Settings, load_settings
from .dispatch import Publisher
from .errors import ConfigError
from .execution import signals
from .execution.ending import RunEnder
from .execution.entry import register_entry
from .execution.process import WorkerProcess
from .gateway.asgi import build_asgi
from .watcher.service import Watcher

F = TypeVar("F", bound=Callable[..., Any])

EXTENSION_KEY = "a2a_celery"


class A2A:
    """A2A for a Celery app: ``a2a = A2A(app)``.

    Settings are read when they are first needed, so the app may be configured before or after.
    """

    def __init__(self, app: Celery) -> None:
        self.celery = app
        self.agents: dict[str, Agent] = {}
        self._processes: dict[int, WorkerProcess] = {}
        # One lock per process: one that was held while a child was forked would stay locked there.
        self._process_locks: dict[int, Lock] = {}
        self._ender = RunEnder(lambda: self.settings)
        signals.connect(app, self._ender)
        setattr(app, EXTENSION_KEY, self)

    @classmethod
    def of(cls, app: Celery) -> A2A:
        """The A2A of `app`.

        Raises:
            ConfigError: it has none.
        """
        found = getattr(app, EXTENSION_KEY, None)
        if not isinstance(found, cls):
            raise ConfigError(f"the Celery app {app.main!r} has no agents: a2a = A2A(app) in its module")
        return found

    @cached_property
    def settings(self) -> Settings:
        """The settings, from the environment and the Celery configuration."""
        return load_settings(self.celery.conf)

    def add_agent(
        self,
        card: AgentCard,
        executor: ExecutorSource,
        *,
        name: str | None = None,
        extended_card: AgentCard | None = None,
        **options: Any,
    ) -> Agent:
        """Adds an a2a-sdk AgentExecutor, unmodified.

        `executor` is an instance, its class, a function that makes one, or "module:name" of any of these; by name it
        is imported in workers only. `name` is its part of URLs (from the card's name if None). `options` (queue,
        priority …) go to Celery with every run, but for those that are fields of `Agent`.

        Raises:
            ConfigError: the card or an option can't be honoured, or the name is taken.
        """
        name = name or name_from_card(card)
        return self._add(Agent.with_options(name, card, "executor", executor, extended_card, options))

    def agent(
        self,
        name: str,
        *,
        description: str | None = None,
        version: str = "1.0.0",
        skills: Sequence[AgentSkill] = (),
        input_modes: Sequence[str] = ("text/plain", "application/json"),
        output_modes: Sequence[str] = ("text/plain", "application/json"),
        **options: Any,
    ) -> Callable[[F], F]:
        """Makes an agent of a function that takes a `Turn`: async or sync, returning or yielding.

        What it returns or yields becomes an artifact: text, bytes, JSON-like data, parts, whole artifacts.

        Raises:
            ConfigError: as `add_agent`.
        """

        def decorate(function: F) -> F:
            card = card_for_function(
                name,
                function,
                description=description,
                version=version,
                skills=skills,
                input_modes=input_modes,
                output_modes=output_modes,
            )
            self._add(Agent.with_options(name, card, "function", function, None, options))
            return function

        return decorate

    def asgi(self) -> Starlette:
        """The gateway, for any ASGI server."""
        return build_asgi(self.celery, self.agents, self.settings)

    def watcher(self) -> Watcher:
        """The watcher: what ``celery -A … a2a watcher`` runs."""
        return Watcher(self.settings, self._publisher())

    def _add(self, agent: Agent) -> Agent:
        if agent.name in self.agents:
            raise ConfigError(f"there is an agent {agent.name!r} already: pass another name")
        self.agents[agent.name] = agent
        register_entry(self.celery, agent, self._process, self._ender)
        return agent

    def _process(self) -> WorkerProcess:
        """The state of this worker process: made at its first run, so never before a fork."""
        pid = os.getpid()
        if pid not in self._processes:
            with self._process_locks.setdefault(pid, Lock()):
                if pid not in self._processes:
                    self._processes[pid] = WorkerProcess(self.settings, self._publisher())
        return self._processes[pid]

    def _publisher(self) -> Publisher:
        return Publisher(self.celery, {name: agent.options for name, agent in self.agents.items()})
