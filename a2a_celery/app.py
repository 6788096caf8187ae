"""`A2A`: registration of agents, settings, and wiring of the gateway, the watcher and the worker side.

The SDK, the gateway, the watcher and the worker side are imported in the methods that need them. A process that only
registers agents, such as a producer of Celery tasks, does not import them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from celery import Celery, Task

from .agents import (
    Agent,
    ExecutorSource,
    FrameworkAgent,
    attempts_of_task,
    name_from_card,
    name_of_task,
    require_named_arguments,
)
from .errors import ConfigError
from .execution.celery import worker_signals
from .features import CELERY_TASKS, AppFeature, FeatureMethods
from .integrations.celery import resolve_proxy
from .settings import Settings
from .settings.loading import LoadedSettings, read_settings

if TYPE_CHECKING:
    from a2a.types import AgentCard, AgentSkill
    from starlette.applications import Starlette

    from .client.session import Content
    from .dispatch import Publisher
    from .execution.agent_worker import AgentWorker
    from .submission import Submissions, TaskHandle
    from .watcher.service import Watcher

F = TypeVar("F", bound=Callable[..., Any] | str)
LifespanFactory = TypeVar("LifespanFactory", bound=Callable[[], AbstractAsyncContextManager[object]])

EXTENSION_KEY = "a2a_celery"

_imported_apps: WeakSet[Celery] = WeakSet()
"""Apps whose modules have been imported."""


def import_modules(app: Celery) -> None:
    """Import the modules that `app` includes or discovers, as a worker does. Only the first call has an effect.

    The modules may define agents. Further calls skip the import, because receivers of Celery's ``import_modules``
    signal may be slow. For example, the Django fixup checks all models.
    """
    if app in _imported_apps:
        return
    _imported_apps.add(app)  # before the import, because a module may call `A2A.asgi`
    try:
        app.loader.import_default_modules()
    except BaseException:
        _imported_apps.discard(app)
        raise


class A2A(FeatureMethods):
    """A2A support for a Celery app: ``a2a = A2A(app)``.

    Settings are read when they are first needed, so the app may be configured before or after this object is created.
    """

    def __init__(self, app: Celery) -> None:
        super().__init__()
        self.celery = app
        self.agents: dict[str, Agent] = {}
        self._thread_cleanups: list[Callable[[], object]] = []
        self._lifespans: list[Callable[[], AbstractAsyncContextManager[object]]] = []
        self.app_features: list[AppFeature] = []
        self._simulated_publisher: Publisher | None = None
        worker_signals.connect_logging(app, lambda: self.settings)
        worker_signals.connect(app, self.worker)
        if not hasattr(app, EXTENSION_KEY):
            for register_task in CELERY_TASKS.values():
                register_task(app)
        setattr(app, EXTENSION_KEY, self)

    @classmethod
    def of(cls, app: Celery) -> A2A:
        """Return the `A2A` object of `app`.

        Raises:
            ConfigError: The app has no `A2A` object.
        """
        a2a = getattr(app, EXTENSION_KEY, None)
        if not isinstance(a2a, cls):
            raise ConfigError(f"the Celery app {app.main!r} has no agents: a2a = A2A(app) in its module")
        return a2a

    @cached_property
    def loaded(self) -> LoadedSettings:
        """Settings from the environment and the Celery configuration, with the source of each setting."""
        return read_settings(self.celery.conf, namespace=self.celery.namespace)

    @property
    def settings(self) -> Settings:
        return self.loaded.settings

    def add_agent(
        self,
        card: AgentCard,
        executor: ExecutorSource | FrameworkAgent,
        *,
        name: str | None = None,
        extended_card: AgentCard | None = None,
        **options: Any,
    ) -> Agent:
        """Add an unmodified a2a-sdk AgentExecutor, or an agent of a different framework.

        Args:
            card: Card, or a function that returns the card. With a function, `name` is required.
            executor: AgentExecutor instance, class or factory, the return value of an adapter in
                ``a2a_celery.frameworks``, or the import path "module:name" of an instance, class or factory. Only
                workers import the path. The return value of an adapter implies ``session=True``.
            name: Name in URLs, by default derived from the card's name.
            extended_card: Card that GetExtendedAgentCard returns, or None. An extended card requires
                ``capabilities.extended_agent_card`` in `card`.
            options: Options of the agent: fields of `Agent`, and Celery's retry options such as `autoretry_for`. The
                options `queue`, `priority`, `exchange`, `routing_key` and `expires` are passed to Celery with every
                run.

        Raises:
            ConfigError: The name, the card or an option is invalid, or the name is taken.
        """
        name = name or name_from_card(card)
        if inspect.isasyncgenfunction(executor):
            return self._add(Agent.of_framework(name, card, executor, extended_card, options))
        return self._add(Agent.with_options(name, card, "executor", executor, extended_card, options))

    def agent(
        self,
        name: str,
        *,
        description: str | None = None,
        version: str | None = None,
        skills: Sequence[AgentSkill] = (),
        input_modes: Sequence[str] = ("text/plain", "application/json"),
        output_modes: Sequence[str] = ("text/plain", "application/json"),
        **options: Any,
    ) -> Callable[[F], F]:
        """Register a function as an agent. The function receives a `Turn`, may be async or sync, and may return or
        yield values.

        The decorator also accepts the import path "module:name" of a function, which only workers import. Returned and
        yielded values become artifacts: text, bytes, JSON-like data, parts or complete artifacts.

        Args:
            name: Name in URLs and on the card.
            description: Description on the card, by default the first paragraph of the function's docstring. Without a
                docstring, the default is the name.
            version: Version of the agent's code, which the card shows; see `Agent.version`. Without a version, the card
                shows "1.0.0".
            skills: Skills on the card, by default one skill with the name and the description of the agent.
            input_modes: Media types that the agent accepts.
            output_modes: Media types that the agent produces.
            options: See `add_agent`.

        Raises:
            ConfigError: See `add_agent`.
        """
        if not isinstance(name, str):  # @a2a.agent without parentheses passes the function
            raise ConfigError(f'@a2a.agent: {name!r} is not a name: write @a2a.agent("NAME")')
        if version is not None:
            options["version"] = version

        def decorate(function: F) -> F:
            def card() -> AgentCard:
                from .agent_cards import card_for_function

                return card_for_function(
                    name,
                    function,
                    description=description,
                    version=version or "1.0.0",
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
        """Register an existing Celery task as an agent. Other callers of the task are not affected.

        A data part of the message becomes keyword arguments, which are checked against the task's signature. A text
        part becomes the argument that accepts text. The return value becomes an artifact, and ``update_state`` becomes
        progress. If the task returns a canvas or is replaced by one, the result of the canvas is the result of the A2A
        task. The task keeps its queue, limits and retries.

        If the task has `acks_late` and `reject_on_worker_lost`, the default `max_attempts` is the task's
        `max_retries` + 1. If `max_retries` is None, the number of attempts is practically unlimited.

        Args:
            task: Task of this app.
            name: Name in URLs, by default the last part of the task's name.
            description: Description on the derived card, by default the first paragraph of the task's docstring.
                Without a docstring, the default is the agent's name.
            version: Version on the derived card. Unlike the version in `agent`, it does not select the workers of a
                turn.
            card: Card, by default derived from the task's signature and docstring. `description` and `version` have no
                effect on this card.
            options: See `add_agent`. Retry options are refused, because the task has its own.

        Raises:
            ConfigError: The name or an option is invalid, the name is taken, `task` is not a task, is already an agent
                or belongs to another app, or a parameter is positional-only.
        """
        if not hasattr(task, "app"):
            raise ConfigError(f"a2a.expose: {task!r} is not a Celery task: decorate the function with @app.task")
        if task.app is not self.celery:
            raise ConfigError(f"task {task.name} belongs to another Celery app, {task.app.main!r}")
        task = resolve_proxy(task)
        other = next((agent.name for agent in self.agents.values() if agent.code is task), None)
        if other is not None:
            raise ConfigError(f"task {task.name} is already exposed as the agent {other!r}")
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

        options = {"max_attempts": attempts_of_task(task), **options}
        return self._add(Agent.with_options(agent_name, card or card_of_task, "task", task, None, options))

    def add_thread_cleanup(self, function: Callable[[], object]) -> None:
        """Call `function` in a worker thread each time agent code in the thread has finished.

        The function is called in the threads of synchronous agents and of `asyncio.to_thread`. For example, a
        SQLAlchemy scoped session belongs to a thread: ``a2a.add_thread_cleanup(Session.remove)``. Django's connections
        are closed automatically.
        """
        self._thread_cleanups.append(function)

    def add_lifespan(self, lifespan: LifespanFactory) -> LifespanFactory:
        """Enter `lifespan()` on the event loop of each worker process with agents, and exit it when the process stops.

        A lifespan is useful for connection pools and clients that belong to one loop. The lifespan is entered before
        the first agent of the process is created. If the lifespan cannot be entered, the run fails, and the next run
        tries again. If the process is killed, the lifespan is not exited.

        Args:
            lifespan: Function without parameters that returns an asynchronous context manager, for example a function
                with the decorator `contextlib.asynccontextmanager`.

        Returns:
            `lifespan`, so that this method is also a decorator.
        """
        self._lifespans.append(lifespan)
        return lifespan

    def submit(
        self,
        agent: str,
        message: Content,
        *,
        owner: str | None = None,
        tenant: str | None = None,
        context_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        extensions: Sequence[str] | None = None,
        cancel_with_parent: bool = True,
        on_commit: Callable[[Callable[[], None]], None] | None = None,
    ) -> TaskHandle:
        """Send a message to an agent of this app without HTTP, and return the handle of its task.

        The message passes the same validation and limits as a SendMessage request. The caller needs the store and the
        broker, but no gateway. The caller is trusted to specify the owner of the task.

        Args:
            agent: Name of the agent.
            message: Text, bytes, JSON data, parts or a complete message. An agent that recognizes repeated messages
                accepts a message with an id once.
            owner: Name of the user who owns the task, as the gateway authenticates it, or None for no owner.
            tenant: Tenant of the task, or None for no tenant.
            context_id: Id of the task's context, or None for a new context.
            metadata: Metadata of the request as JSON values, or None for no metadata.
            extensions: URIs of the extensions that the caller requests, or None.
            cancel_with_parent: True if the new task is cancelled when its parent ends without a result, or when the run
                that calls this method is retried. The parent is the task of the agent whose code calls this method, if
                any.
            on_commit: Function that calls its argument after the commit of the caller's transaction, such as Django's
                ``transaction.on_commit``, or None to submit immediately. The message is checked immediately, and the
                task of the handle exists after the commit. The code that commits receives all other errors.

        Raises:
            ConfigError: There is no such agent, the store does not fit the settings, or no worker could read the
                published message.
            A2AError: The message is invalid or exceeds a limit.
            TypeError: `message` has a type that A2A cannot represent.
            StoreUnavailable: The store is unavailable. The task may have been created.
            RuntimeError: A coroutine calls this method instead of `submit_async`.
        """
        from .features.families.submission import submission_of

        submission = submission_of(
            agent,
            message,
            owner=owner,
            tenant=tenant,
            context_id=context_id,
            metadata=metadata,
            extensions=extensions,
            cancel_with_parent=cancel_with_parent,
        )
        return self._submissions.submit(submission, on_commit)

    async def submit_async(self, agent: str, message: Content, **options: Any) -> TaskHandle:
        """Submit a message without blocking the event loop; see `submit`."""
        from .features.families.submission import submission_of

        return await self._submissions.submit_async(submission_of(agent, message, **options))

    def task(self, agent: str, task_id: str, *, owner: str | None = None, tenant: str | None = None) -> TaskHandle:
        """Return the handle of an agent's task. The task may have been submitted by another process.

        The methods of the handle raise TaskNotFoundError if `owner` in `tenant` has no such task.
        """
        return self._submissions.handle(agent, task_id, owner=owner, tenant=tenant)

    def close(self) -> None:
        """Close the connections that `submit`, `signal` and the other calls of this process have opened. A further call
        opens new connections."""
        submissions = self.__dict__.pop("_submissions", None)
        if submissions is not None:
            submissions.close()

    @cached_property
    def _submissions(self) -> Submissions:
        from .dispatch import require_readable
        from .submission import Submissions

        import_modules(self.celery)
        require_readable(self.celery, self.agents.values())
        return Submissions(self.agents, lambda: self.settings, self._publisher)

    def signal(
        self, task_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, sender: str = "app"
    ) -> bool:
        """Send a signal to a task of any caller. The task's agent receives the signal with `Turn.wait_for`.

        Args:
            task_id: Id of the A2A task.
            name: Name of the signal: 1 to 64 ASCII letters, digits and ``_ . : -``.
            payload: JSON value of up to 64 KiB.
            signal_id: Id of the signal, by default a new one. A second signal with the same id has no effect.
            sender: Kind of the sender: "app", or "operator" or "client" if the app forwards a signal of such a person.

        Returns:
            True if the signal resumed a run that waited for it, or False if it is stored until a run waits for it.

        Raises:
            RuntimeError: A coroutine called this method; await `signal_async` instead.
            ValueError: The name, the payload, the id or the sender is invalid.
            SignalRefused: The task cannot receive the signal. The text of the error states the reason.
            StoreUnavailable: Redis is unreachable or refuses commands.
        """
        from .operations.signals import Signal

        return self._submissions.signal(task_id, Signal.of(name, payload, signal_id, sender))

    async def signal_async(
        self, task_id: str, name: str, payload: Any = None, *, signal_id: str | None = None, sender: str = "app"
    ) -> bool:
        """Send a signal and return True if a run waited for it, like `signal`, without blocking the event loop."""
        from .operations.signals import Signal

        return await self._submissions.signal_async(task_id, Signal.of(name, payload, signal_id, sender))

    def asgi(self, *, standalone: bool = False, grpc_host: str = "127.0.0.1") -> Starlette:
        """Return the gateway as an ASGI app, with the agents of every module that the app includes or discovers.

        Args:
            standalone: True if no other application wraps the gateway. If False, gRPC without authentication is
                refused, because the wrapping application may authenticate HTTP callers and does not see gRPC calls.
            grpc_host: Address on which the gateway listens for gRPC if `grpc_port` is set.

        Raises:
            ConfigError: The configuration is invalid, or no worker could read the messages that the gateway publishes.
        """
        from .dispatch import report_unreadable_results, require_readable
        from .gateway.asgi import build_asgi
        from .gateway.auth.from_settings import require_grpc_authentication
        from .gateway.health import report_start

        import_modules(self.celery)
        if not standalone:
            require_grpc_authentication(self.settings)
        require_readable(self.celery, self.agents.values())
        asgi = build_asgi(self.celery, self.agents, self.settings, grpc_host=grpc_host)
        report_start(self.celery, self.loaded)
        report_unreadable_results(self.celery, self.agents.values())
        return asgi

    def watcher(self) -> Watcher:
        """Return the watcher, which ``celery -A … a2a watcher`` runs.

        Raises:
            ConfigError: The configuration is invalid, or no worker could read the messages that the watcher publishes.
        """
        from .dispatch import report_unreadable_results, require_readable
        from .watcher.service import Watcher

        import_modules(self.celery)
        require_readable(self.celery, self.agents.values())
        report_unreadable_results(self.celery, self.agents.values())
        return Watcher(self.settings, self._publisher(), self.celery)

    def worker(self) -> AgentWorker:
        """Return the worker side of the app. Celery workers call this method when they start, before they fork."""
        return self._worker

    @cached_property
    def _worker(self) -> AgentWorker:
        from .execution.agent_worker import AgentWorker

        return AgentWorker(
            self.celery,
            self.agents,
            lambda: self.settings,
            self._publisher,
            self._thread_cleanups,
            self._lifespans,
            self.app_features,
        )

    def _add(self, agent: Agent) -> Agent:
        if agent.name in self.agents:
            raise ConfigError(f"there is an agent {agent.name!r} already: pass another name")
        self.agents[agent.name] = agent
        if "_worker" in self.__dict__:
            self._worker.add(agent)
        return agent

    @contextmanager
    def simulation(self, loaded: LoadedSettings, publisher: Publisher) -> Iterator[None]:
        """Replace the settings and the publisher of runs inside a ``with`` block, for ``a2a_celery.testing``.

        Raises:
            RuntimeError: Another simulation uses this object.
        """
        if self._simulated_publisher is not None:
            raise RuntimeError("this A2A object is in use by another AgentTester: leave its block first")
        names = ("loaded", "_submissions")
        cached_values: dict[str, Any] = {name: self.__dict__.pop(name) for name in names if name in self.__dict__}
        self.__dict__["loaded"], self._simulated_publisher = loaded, publisher
        try:
            yield
        finally:
            self.close()
            del self.__dict__["loaded"]
            self.__dict__.update(cached_values)
            self._simulated_publisher = None

    def _publisher(self) -> Publisher:
        from .dispatch import Publisher

        if self._simulated_publisher is not None:
            return self._simulated_publisher
        return Publisher.of(self.celery, self.agents, self.settings.key_prefix)
