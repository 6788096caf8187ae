"""`A2A`: agents, settings and wiring; the only place that knows all the parts. No logic.

The SDK, the gateway, the watcher and the worker side are imported by the methods that need them. A process that only
registers agents, such as a producer of Celery tasks, imports none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from celery import Celery, Task
from celery.local import Proxy

from .agents import Agent, ExecutorSource, name_from_card, name_of_task, require_named_arguments
from .config import Settings
from .errors import ConfigError
from .execution import log_format, worker_signals
from .loading import LoadedSettings, read_settings

if TYPE_CHECKING:
    from a2a.types import AgentCard, AgentSkill
    from starlette.applications import Starlette

    from .dispatch import Publisher
    from .execution.agent_worker import AgentWorker
    from .watcher.service import Watcher

F = TypeVar("F", bound=Callable[..., Any] | str)

EXTENSION_KEY = "a2a_celery"

_imported: WeakSet[Celery] = WeakSet()
"""The apps whose modules were imported."""


def import_modules(app: Celery) -> None:
    """Import the modules that `app` includes or discovers, as a worker does; only the first call has an effect.

    Agents may be defined there. Receivers of Celery's signal may cost much: the Django fixup checks all models.
    """
    if app in _imported:
        return
    _imported.add(app)  # before: a module may call `A2A.asgi`
    try:
        app.loader.import_default_modules()
    except BaseException:
        _imported.discard(app)
        raise


class A2A:
    """A2A for a Celery app: ``a2a = A2A(app)``.

    Settings are read when they are first needed, so the app may be configured before or after.
    """

    def __init__(self, app: Celery) -> None:
        self.celery = app
        self.agents: dict[str, Agent] = {}
        self._thread_cleanups: list[Callable[[], object]] = []
        log_format.connect(app, lambda: self.settings)
        worker_signals.connect(app, self.worker)
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
    def loaded(self) -> LoadedSettings:
        """The settings, from the environment and the Celery configuration, with the source of each."""
        return read_settings(self.celery.conf, namespace=self.celery.namespace)

    @property
    def settings(self) -> Settings:
        """The settings alone."""
        return self.loaded.settings

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

        "module:name" of one does too: it is imported in workers only.

        What it returns or yields becomes an artifact: text, bytes, JSON-like data, parts, whole artifacts.

        Raises:
            ConfigError: as `add_agent`.
        """

        def decorate(function: F) -> F:
            def card() -> AgentCard:
                from .agent_cards import card_for_function

                return card_for_function(
                    name,
                    function,
                    description=description,
                    version=version,
                    skills=skills,
                    input_modes=input_modes,
                    output_modes=output_modes,
                )

            self._add(Agent.with_options(name, card() if skills else card, "function", function, None, options))
            return function

        return decorate

    def expose(
        self,
        task: Task,
        *,
        name: str | None = None,
        description: str | None = None,
        version: str = "1.0.0",
        card: AgentCard | None = None,
        **options: Any,
    ) -> Agent:
        """Makes an agent of a Celery task that already exists; whoever else calls it finds it unchanged.

        A data part of the message becomes its keyword arguments, checked against its signature; a text part the one
        argument that takes it. What it returns becomes an artifact, `update_state` progress, a canvas that it begins
        its own end. `name` is the last part of the task's if None, `card` is made from its signature and docstring.
        The task's own queue, limits and retries stay; `options` are as for `add_agent`.

        Raises:
            ConfigError: as `add_agent`; or the task is another app's, or takes what no client could send.
        """
        if task.app is not self.celery:
            raise ConfigError(f"task {task.name} belongs to another Celery app, {task.app.main!r}")
        if isinstance(task, Proxy):
            task = task._get_current_object()
        other = next((agent.name for agent in self.agents.values() if agent.code is task), None)
        if other is not None:
            raise ConfigError(f"task {task.name} is the agent {other!r} already")
        require_named_arguments(task)
        agent_name = name or name_of_task(task.name)

        def card_of_task() -> AgentCard:
            from .agent_cards import card_for_task
            from .dispatch import CallSignature

            signature = CallSignature.of(task)
            arguments, texts = str(signature), signature.takes_text
            return card_for_task(
                agent_name, task, description=description, version=version, arguments=arguments, texts=texts
            )

        return self._add(Agent.with_options(agent_name, card or card_of_task, "task", task, None, options))

    def add_thread_cleanup(self, function: Callable[[], object]) -> None:
        """Call `function` in each thread of a worker in which code of an agent has ended.

        The threads are those of synchronous agents and of `asyncio.to_thread`. A scoped session of SQLAlchemy belongs
        to a thread: ``a2a.add_thread_cleanup(Session.remove)``. Django's connections are closed without a call.
        """
        self._thread_cleanups.append(function)

    def asgi(self) -> Starlette:
        """The gateway, for any ASGI server, with the agents of every module that the app includes or discovers.

        Raises:
            ConfigError: it can't serve as it is configured, or no worker could read what it publishes.
        """
        from .dispatch import require_readable
        from .gateway.asgi import build_asgi
        from .gateway.start_report import report_start

        import_modules(self.celery)
        require_readable(self.celery, self.agents.values())
        asgi = build_asgi(self.celery, self.agents, self.settings)
        report_start(self.celery, self.loaded)
        return asgi

    def watcher(self) -> Watcher:
        """The watcher: what ``celery -A … a2a watcher`` runs.

        Raises:
            ConfigError: no worker could read what it publishes.
        """
        from .dispatch import require_readable
        from .watcher.service import Watcher

        import_modules(self.celery)
        require_readable(self.celery, self.agents.values())
        return Watcher(self.settings, self._publisher(), self.celery)

    def worker(self) -> AgentWorker:
        """Return the worker side; Celery's workers load it when they start, before they fork."""
        return self._worker

    @cached_property
    def _worker(self) -> AgentWorker:
        from .execution.agent_worker import AgentWorker

        return AgentWorker(self.celery, self.agents, lambda: self.settings, self._publisher, self._thread_cleanups)

    def _add(self, agent: Agent) -> Agent:
        if agent.name in self.agents:
            raise ConfigError(f"there is an agent {agent.name!r} already: pass another name")
        self.agents[agent.name] = agent
        if "_worker" in self.__dict__:
            self._worker.add(agent)
        return agent

    def _publisher(self) -> Publisher:
        from .dispatch import Publisher

        options = {name: agent.options for name, agent in self.agents.items()}
        return Publisher(self.celery, options, self.settings.key_prefix)
