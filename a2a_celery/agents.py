"""Registered agents, with their cards, code sources and options. Registration does not import the agents' code."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

from celery import Task

from .delays import is_number
from .errors import ConfigError
from .features import FEATURE_OPTIONS, TASK_OPTIONS, Feature, features_of, framework_options
from .settings import Settings

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from a2a.server.agent_execution import AgentExecutor
    from a2a.types import AgentCard, SendMessageRequest

    from .caller import Caller

T = TypeVar("T")

VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,63}")
"""Pattern of the version of an agent's code. The version is part of queue names."""

NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
"""Pattern of agent names. The name is part of URLs, of the name of a Celery task, and of keys in the store."""

ExecutorSource: TypeAlias = "AgentExecutor | type[AgentExecutor] | Callable[[], AgentExecutor] | str"
"""Executor, executor class, factory of executors, or the import path "module:name" of one of these."""

FrameworkAgent: TypeAlias = Callable[[Any], AsyncGenerator[Any, None]]
"""Async generator function from an adapter in ``frameworks``. The function receives a `Turn` and stores the
conversation in the session."""

CardSource: TypeAlias = "AgentCard | Callable[[], AgentCard]"
"""Card, or a function that builds the card on first use."""

Route: TypeAlias = "Callable[[SendMessageRequest, Caller], Mapping[str, Any]]"
"""Function that returns Celery options (`CELERY_OPTIONS`) for a message and its caller. The function is called on the
event loop of the process that creates the run, usually a gateway, so it must not block."""

OnMessage: TypeAlias = Literal["queue", "steer", "interrupt", "reject"]
"""Effect of a message to a task whose run has not ended."""

OWN_OPTIONS = frozenset(
    {
        "cancel_grace",
        "first_event_hold",
        "idle_limit",
        "input_timeout",
        "max_attempts",
        "on_message",
        "one_run_per_context",
        "route",
        "scheduling",
        "show_execution",
        "signals",
        "time_limit",
        "version",
    }
)
"""Options that are fields of `Agent`. All other options, except `FEATURE_OPTIONS`, are passed to Celery."""

MOST_ATTEMPTS = 1_000_000
"""`max_attempts` of an agent whose Celery task may be retried without limit."""

CELERY_OPTIONS = frozenset({"queue", "priority", "exchange", "routing_key", "expires"})
"""Celery options that an agent and its route may set."""


@dataclass(frozen=True)
class Agent:
    """Registered agent of an app.

    Attributes:
        name: Name of the agent in URLs.
        card_source: Public card, or a function that builds the card.
        kind: Kind of the agent's code.
        code: Executor source, function that receives a `Turn`, or Celery task, depending on `kind`.
        extended_card: Card that GetExtendedAgentCard returns, or None.
        options: Options for Celery's ``apply_async`` of every run. Options from `route` take precedence.
        feature_options: Options of features.
        route: Function that returns Celery options for a message, or None.
        scheduling: True if clients may set the earliest and the latest start of a message's run.
        max_attempts: Maximum number of attempts if workers are lost. With the default of 1, a task fails if its worker
            is lost.
        time_limit: Seconds after which the agent is cancelled and its task fails, or None for no limit.
        idle_limit: Seconds without an event after which the agent is cancelled and its task fails, or None for no
            limit.
        input_timeout: Seconds that a task waits for its client before the task fails. `math.inf` means no limit, and
            None means the setting `input_timeout`.
        cancel_grace: Seconds that a cancelled agent may take to stop. None means the setting `cancel_grace`.
        first_event_hold: Seconds without an event after which the task of a run becomes WORKING. Until then, an
            executor may respond with a single message instead of a task. 0 means that a single message completes the
            task.
        show_execution: True to show clients, in the metadata of WORKING statuses, which model or tool a run calls.
        one_run_per_context: True to serialize the runs of a caller in a context. None means True if a feature saves
            data of the context and the agent is not an executor.
        on_message: Effect of a message to a task whose run has not ended. "queue": the turn of the message begins when
            the run ends with a question. "steer": the agent can read the message while it works. "interrupt": the agent
            is stopped, and the turn of the message begins. "reject": the message is refused.
        signals: Names of the signals that the client that owns a task may send. The app and operators may send all
            signals.
        version: Version of the agent's code. Workers with the version that began a turn execute the later runs of the
            turn, as long as such a worker runs. With None, any worker executes the later runs.
    """

    name: str
    card_source: CardSource
    kind: Literal["executor", "function", "task"]
    code: Any
    extended_card: AgentCard | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    feature_options: Mapping[str, Any] = field(default_factory=dict)
    route: Route | None = None
    scheduling: bool = False
    time_limit: float | None = None
    idle_limit: float | None = None
    max_attempts: int = 1
    show_execution: bool = False
    one_run_per_context: bool | None = None
    input_timeout: float | None = None
    cancel_grace: float | None = None
    first_event_hold: float = 0.5
    on_message: OnMessage = "queue"
    signals: Collection[str] = ()
    version: str | None = None

    @classmethod
    def of_framework(
        cls,
        name: str,
        card: CardSource,
        code: FrameworkAgent,
        extended_card: AgentCard | None,
        options: Mapping[str, Any],
    ) -> Agent:
        """Return an agent for the code that an adapter in ``frameworks`` has returned.

        Raises:
            ConfigError: The name or the card is invalid, or an option is unknown, invalid or unfit for the adapter.
        """
        return cls.with_options(name, card, "function", code, extended_card, framework_options(name, options))

    @classmethod
    def with_options(
        cls,
        name: str,
        card: CardSource,
        kind: Literal["executor", "function", "task"],
        code: Any,
        extended_card: AgentCard | None,
        options: Mapping[str, Any],
    ) -> Agent:
        """Return an agent whose options are fields of `Agent`, options of features, or options for Celery.

        Args:
            name: Name of the agent.
            card: Card, or a function that builds the card.
            kind: Kind of the agent's code.
            code: See `Agent.code`.
            extended_card: Card that GetExtendedAgentCard returns, or None.
            options: Other fields of `Agent`, options of features, and options for Celery.

        Raises:
            ConfigError: The name or the card is invalid, or an option is unknown or invalid.
        """
        own = {name: options[name] for name in OWN_OPTIONS & set(options)}
        if kind == "task" and (of_task := TASK_OPTIONS & set(options)):
            raise ConfigError(f"agent {name!r}: {min(of_task)}: set it at the Celery task: @app.task({min(of_task)}=…)")
        celery = {name: options[name] for name in options if name not in OWN_OPTIONS | FEATURE_OPTIONS}
        of_features = {name: options[name] for name in FEATURE_OPTIONS & set(options)}
        return cls(name, card, kind, code, extended_card, celery, of_features, **own)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise ConfigError(f"agent name {self.name!r}: use lower-case letters, digits, '_', '.' and '-', 63 at most")
        unknown = set(self.options) - CELERY_OPTIONS
        if unknown:
            names = ", ".join(sorted(CELERY_OPTIONS | OWN_OPTIONS | FEATURE_OPTIONS))
            raise ConfigError(f"agent {self.name!r}: unknown option {sorted(unknown)[0]!r}; known: {names}")
        _ = self.features  # refuses invalid options
        self._check_own_options()
        if self.kind == "function" and not isinstance(self.code, str | None):
            self._check_signature()
        if self.extended_card is not None and not self.card.capabilities.extended_agent_card:
            raise ConfigError(
                f"agent {self.name!r}: an extended card needs capabilities.extended_agent_card = True in the public one"
            )

    @cached_property
    def card(self) -> AgentCard:
        return self.card_source() if callable(self.card_source) else self.card_source

    @cached_property
    def features(self) -> tuple[Feature, ...]:
        """Features that the agent uses, with their options."""
        return features_of(self.name, self.feature_options)

    def option(self, name: str) -> Any:
        """Return the value of an option of the agent or of a feature, or None for an option that is not set."""
        return self.feature_options[name] if name in self.feature_options else getattr(self, name, None)

    def selected(self, functions: Mapping[tuple[str, Any], T]) -> list[T]:
        """Return the functions of features whose option has the value that turns the feature on."""
        return [function for (option, value), function in functions.items() if self.option(option) == value]

    @property
    def saves_context_data(self) -> bool:
        """True if the runs of the agent save data of their contexts; see `Feature`."""
        return any(feature.saves_context_data for feature in self.features)

    @property
    def recognizes_repeats(self) -> bool:
        """True if a message to the agent may repeat an accepted message."""
        return any(feature.recognizes_repeats for feature in self.features)

    @property
    def serialize_context(self) -> bool:
        if self.one_run_per_context is None:
            return self.saves_context_data and self.kind != "executor"
        return self.one_run_per_context

    @property
    def delivers_messages(self) -> bool:
        """True if a message to a working task reaches the task's current run, or stops that run."""
        return self.on_message in ("steer", "interrupt")

    def grace(self, settings: Settings) -> float:
        """Return the seconds that the agent may take to stop when it is cancelled."""
        return settings.cancel_grace if self.cancel_grace is None else self.cancel_grace

    def pause_limit(self, settings: Settings) -> float | None:
        """Return the maximum number of seconds that a task waits for its client, or None for no limit."""
        if self.input_timeout is None:
            return settings.input_timeout
        return None if self.input_timeout == inf else self.input_timeout

    def _check_signature(self) -> None:
        try:
            inspect.signature(self.code).bind(None)
        except TypeError:
            raise ConfigError(
                f"agent {self.name!r}: {self.code!r}: must be a function with one parameter, the turn"
            ) from None
        except ValueError:
            pass  # a builtin without a signature

    def _check_own_options(self) -> None:
        if not isinstance(self.max_attempts, int) or isinstance(self.max_attempts, bool) or self.max_attempts < 1:
            raise ConfigError(f"agent {self.name!r}: max_attempts = {self.max_attempts!r}: a whole number, 1 or more")
        if self.route is not None and (not callable(self.route) or inspect.iscoroutinefunction(self.route)):
            raise ConfigError(f"agent {self.name!r}: route = {self.route!r}: a plain function (request, caller)")
        if not isinstance(self.scheduling, bool):
            raise ConfigError(f"agent {self.name!r}: scheduling = {self.scheduling!r}: True or False")
        if not isinstance(self.one_run_per_context, bool | None):
            raise ConfigError(
                f"agent {self.name!r}: one_run_per_context = {self.one_run_per_context!r}: True, False or None"
            )
        if self.scheduling and self.serialize_context:
            raise ConfigError(
                f"agent {self.name!r}: scheduling = True: a scheduled message would block later messages of its "
                "context; remove scheduling, or set one_run_per_context = False"
            )
        self._check_show_execution()
        self._check_on_message()
        self._check_signals()
        self._check_version()
        for name in ("time_limit", "idle_limit", "cancel_grace"):
            limit = getattr(self, name)
            if limit is not None and not (is_number(limit) and 0 < limit < inf):
                raise ConfigError(f"agent {self.name!r}: {name} = {limit!r}: a number of seconds above 0, or None")
        hold = self.first_event_hold
        if not (is_number(hold) and 0 <= hold < inf):
            raise ConfigError(f"agent {self.name!r}: first_event_hold = {hold!r}: a number of seconds, 0 or more")
        timeout = self.input_timeout
        if timeout is not None and not (is_number(timeout) and timeout >= 1):
            raise ConfigError(
                f"agent {self.name!r}: input_timeout = {timeout!r}: a number of seconds from 1, math.inf, or None"
            )

    def _check_show_execution(self) -> None:
        if not isinstance(self.show_execution, bool):
            raise ConfigError(f"agent {self.name!r}: show_execution = {self.show_execution!r}: True or False")
        if self.show_execution and not self.card.capabilities.streaming:
            raise ConfigError(f"agent {self.name!r}: show_execution = True needs a card with capabilities.streaming")

    def _check_signals(self) -> None:
        if isinstance(self.signals, str) or not isinstance(self.signals, Collection):
            raise ConfigError(f"agent {self.name!r}: signals = {self.signals!r}: a tuple of names")
        if not self.signals:
            return
        from .lifecycle.signals import require_signal_name  # noqa: PLC0415 -- protobuf

        for name in self.signals:
            try:
                require_signal_name(name)
            except ValueError as e:
                raise ConfigError(f"agent {self.name!r}: signals = {self.signals!r}: {e}") from None
        if self.kind != "function":
            raise ConfigError(
                f"agent {self.name!r}: signals = {self.signals!r}: only function agents can wait for signals"
            )

    def _check_version(self) -> None:
        if self.version is None:
            return
        if not isinstance(self.version, str) or not VERSION.fullmatch(self.version):
            raise ConfigError(
                f"agent {self.name!r}: version = {self.version!r}: 1 to 64 letters, digits, '_', '.', '+' and '-'"
            )
        if self.options.get("exchange") and not self.options.get("queue"):
            raise ConfigError(f"agent {self.name!r}: version = {self.version!r} needs a queue instead of an exchange")

    def _check_on_message(self) -> None:
        values = get_args(OnMessage)
        if self.on_message not in values:
            raise ConfigError(f"agent {self.name!r}: on_message = {self.on_message!r}: one of {', '.join(values)}")
        if not self.delivers_messages:
            return
        if self.kind == "task":
            raise ConfigError(
                f"agent {self.name!r}: on_message = {self.on_message!r}: a Celery task receives its arguments once; "
                "choose 'queue' or 'reject'"
            )
        if self.scheduling:
            raise ConfigError(
                f"agent {self.name!r}: on_message = {self.on_message!r}: a message for later would arrive at once; "
                "leave scheduling out, or choose 'queue' or 'reject'"
            )


def longest_grace(agents: Iterable[Agent], settings: Settings) -> float:
    """Return the maximum number of seconds that one of `agents` may take to stop when it is cancelled."""
    return max([settings.cancel_grace, *(agent.grace(settings) for agent in agents)])


def name_from_card(card: AgentCard) -> str:
    """Derive an agent name from the name of a card. For example, "Route Planner 2" becomes "route-planner-2".

    Raises:
        ConfigError: The name of the card contains no ASCII letter or digit.
    """
    name = re.sub(r"[^a-z0-9]+", "-", card.name.lower()).strip("-")[:63]
    if not name:
        raise ConfigError(f"cannot derive an agent name from the card's name {card.name!r}: pass name=")
    return name


def name_of_task(name: str) -> str:
    """Derive an agent name from the name of a Celery task. For example, "acme.images.resize_image" becomes
    "resize_image"."""
    return re.sub(r"[^a-z0-9_-]+", "-", name.rpartition(".")[2].lower()).strip("-_")[:63]


def attempts_of_task(task: Task) -> int:
    """Return the default `max_attempts` of an agent that runs `task`.

    If the worker of a task with `acks_late` and `reject_on_worker_lost` is lost, Celery runs the task again, without a
    limit. An agent that runs such a task has `max_retries` + 1 attempts, or `MOST_ATTEMPTS` if `max_retries` is None.
    """
    if not (task.acks_late and task.reject_on_worker_lost):
        return 1
    return MOST_ATTEMPTS if task.max_retries is None else task.max_retries + 1


def require_named_arguments(task: Task) -> None:
    """Check that each argument of `task` can be passed by name.

    Raises:
        ConfigError: An argument is positional-only.
    """
    for parameter in inspect.signature(task.run).parameters.values():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            raise ConfigError(
                f"task {task.name}: clients cannot pass the positional-only argument {parameter.name!r}: "
                "allow its name as a keyword"
            )
