"""Tasks of all callers, for operator commands: access to the store without a gateway, and the filters of ``list``,
``cancel --all`` and ``requeue``.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar, cast

import click
from a2a.types import TaskState
from click.core import ParameterSource

from ...app import A2A
from ...dispatch import Publisher
from ...errors import BlobsUnavailable, ConfigError, StoreUnavailable
from ...operations.service import TaskService, run_sync
from ...settings.urls import url_address
from ...store import Keys, SyncStore
from ...store.admin.scan import TaskSummary
from ...store.admin.schema import open_store, require_compatible
from ...store.admin.start_check import reason_of
from ...store.blobs.blob_store import blobs_of
from ..app_loader import load_configured_a2a, unknown_agent
from ..completion import complete_agent
from ..output import STATE_PREFIX

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

STATES = sorted(name.removeprefix(STATE_PREFIX).lower() for name in TaskState.keys()[1:])

AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

TIME_FORMATS = "2030-01-31T12:00 (UTC), or how long ago: 90s, 15m, 2h, 7d"
"""Values of the options whose type is `When`, for help and errors."""

GATEWAY_OPTIONS = {
    "url": "--url",
    "header": "--header",
    "bearer_file": "--bearer-file",
    "api_key_file": "--api-key-file",
}
"""Options of the client commands that do not apply to the store."""


class When(click.ParamType[datetime]):
    """Option type for a time or an age: ``2030-01-31T12:00`` (UTC without a time zone), ``90s``, ``15m``, ``2h``."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """Return `value` as a time with a time zone."""
        if isinstance(value, datetime):
            return value
        number, unit = value[:-1], value[-1:]
        try:
            if unit in AGE_UNITS:
                return datetime.now(UTC) - timedelta(seconds=float(number) * AGE_UNITS[unit])
            time = datetime.fromisoformat(value)
        except (ValueError, OverflowError):
            self.fail(f"{value!r}: write {TIME_FORMATS}", param, ctx)
        return time if time.tzinfo else time.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Selection:
    """Filters on the tasks of all callers. A filter of None matches any value."""

    agent: str | None = None
    tenant: str | None = None
    owner: str | None = None
    context_id: str | None = None
    state: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    begun: datetime | None = None

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> Selection:
        """Remove the filters from the options of a command, and return them as a selection."""
        return cls(**{f.name: options.pop(f.name, None) for f in fields(cls)})

    @property
    def scope(self) -> tuple[str | None, str | None, str | None]:
        return self.agent, self.tenant, self.owner

    @property
    def states(self) -> frozenset[TaskState]:
        """States that match the filter `state`."""
        states = STATES if self.state is None else [self.state]
        return frozenset(cast(TaskState, TaskState.Value(STATE_PREFIX + state.upper())) for state in states)

    @property
    def since_us(self) -> int | None:
        return _microseconds(self.since)

    @property
    def until_us(self) -> int | None:
        return _microseconds(self.until)

    def has_begun(self, task: TaskSummary) -> bool:
        """Return True if a worker had begun the task's newest run by the time `begun`, or if `begun` is None."""
        begun_us = _microseconds(self.begun)
        return begun_us is None or 0 < task.claimed_us <= begun_us

    def has_time(self, at: datetime) -> bool:
        """Return True if `at` is between `since` and `until`, and no other filter is set."""
        of_tasks = (*self.scope, self.context_id, self.state, self.begun)
        return (
            all(value is None for value in of_tasks)
            and (self.since is None or at >= self.since)
            and (self.until is None or at <= self.until)
        )

    def __contains__(self, task: TaskSummary) -> bool:
        values = (task.agent, task.scope.tenant, task.scope.owner, task.context_id)
        filters = (*self.scope, self.context_id)
        return (
            all(expected in (None, actual) for expected, actual in zip(filters, values, strict=True))
            and task.state in self.states
            and (self.since_us is None or task.since_us >= self.since_us)
            and (self.until_us is None or task.since_us <= self.until_us)
            and self.has_begun(task)
        )


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)


OPTIONS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "agent": ("--agent", {"shell_complete": complete_agent, "help": "Only the tasks of this agent."}),
    "tenant": ("--tenant", {"help": 'Only the task or tasks of this tenant; "" for tasks without one.'}),
    "owner": ("--owner", {"help": 'Only the tasks of this caller; "" for tasks without one.'}),
    "context_id": ("--context", {"help": "Only the tasks of this context."}),
    "state": (
        "--state",
        {
            "type": click.Choice(STATES, case_sensitive=False),
            "metavar": "STATE",
            "help": f"Only the tasks in this state: {', '.join(STATES)}.",
        },
    ),
    "since": (
        "--since",
        {
            "type": When(),
            "help": f"Only tasks that entered their state at this time or later. WHEN is {TIME_FORMATS}.",
        },
    ),
    "until": ("--until", {"type": When(), "help": "Only tasks that entered their state at this time or earlier."}),
    "begun": (
        "--begun",
        {"type": When(), "help": "Only tasks whose newest run a worker began at this time or earlier."},
    ),
}
"""Command-line options by the field of `Selection` that they set."""


def selecting(*names: str) -> Callable[[F], F]:
    """Return a decorator that adds the options for the fields `names` of `Selection` to a command."""

    def decorate(command: F) -> F:
        for name in reversed(names):
            option, option_type = OPTIONS[name]
            command = click.option(option, name, default=None, **option_type)(command)
        return command

    return decorate


def refuse_gateway_options(context: click.Context, mode: str, *, has_filters: bool = False) -> None:
    """Refuse options that apply only to a gateway. Variables such as ``A2A_BEARER_FILE`` are allowed, because other
    commands in the same shell use them. If `has_filters` is True, --tenant is a filter and is also allowed.

    Raises:
        click.UsageError: One of the gateway options is on the command line.
    """
    for name, option in {**GATEWAY_OPTIONS, **({} if has_filters else {"tenant": "--tenant"})}.items():
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise click.UsageError(f"{mode} reads the store, not a gateway: leave out {option}")


def refuse_filters(mode: str, options: Mapping[str, Any], names: tuple[str, ...]) -> None:
    """Refuse filters that are valid only with `mode`.

    Raises:
        click.UsageError: One of `names` is set in `options`.
    """
    for name in names:
        if options.get(name) is not None:
            raise click.UsageError(f"{OPTIONS[name][0]} needs {mode}: a gateway shows only the caller's own tasks")


@contextmanager
def operator_store(context: click.Context, agent: str | None) -> Iterator[tuple[A2A, SyncStore, Keys]]:
    """Open the store, and yield the command's A2A, the store and its keys.

    Raises:
        click.ClickException: The app has no A2A or no agent named `agent`, a setting is invalid, the store or the blob
            store is unavailable, or the store has a different schema.
    """
    a2a = load_configured_a2a(context)
    if agent is not None and agent not in a2a.agents:
        raise unknown_agent(a2a, agent)
    settings = a2a.settings
    store = SyncStore(settings.store_url, blobs_of(settings), wait_replicas=settings.store_wait_replicas)
    keys = Keys(a2a.settings.key_prefix)
    try:
        require_compatible(open_store(store, keys), None)
        yield a2a, store, keys
    except ConfigError as e:
        raise click.ClickException(str(e)) from e
    except BlobsUnavailable as e:
        raise click.ClickException(f"{e}: is A2A_BLOB_URL the one that the workers use?") from e
    except StoreUnavailable as e:
        raise click.ClickException(unavailable_store(settings.store_url, e)) from e
    finally:
        store.close()


def run_on_service(a2a: A2A, call: Callable[[TaskService], Coroutine[Any, Any, T]]) -> T:
    """Return the result of `call` with a service of the command's app; see `run_sync`."""
    publisher = Publisher.of(a2a.celery, a2a.agents, a2a.settings.key_prefix)
    result = run_sync(a2a.agents, a2a.settings, publisher, call)
    if publisher.revoke_error:
        click.echo(f"runs were not revoked, and workers will drop them on receipt: {publisher.revoke_error}", err=True)
    return result


def require_agent(a2a: A2A, agent: str | None, *, has_tasks: bool) -> None:
    """Require that an agent in the filters of a command is an agent of this app, or has a task that matches.

    Raises:
        click.ClickException: The app has no such agent, and `has_tasks` is False.
    """
    if agent is not None and agent not in a2a.agents and not has_tasks:
        raise unknown_agent(a2a, agent, ", and no matching task has this agent")


def unavailable_store(url: str, error: StoreUnavailable) -> str:
    """Return an error text with the store's address, without its password, and the reason."""
    return (
        f"the store {url_address(url)} is unavailable ({reason_of(error)}): is Redis up, and is A2A_STORE_URL the one "
        "that the workers use?"
    )


def missing_task(a2a: A2A, task_id: str, agent: str | None = None) -> click.ClickException:
    """Return the error for a task that is not in the store."""
    of, wrong = (f" of {agent}", "its id or its agent is wrong") if agent else ("", "its id is wrong")
    text = f"no task {task_id}{of} in the store: {wrong}, "
    if a2a.settings.archive_url is None:
        return click.ClickException(f"{text}or a2a_retention has passed")
    return click.ClickException(f"{text}a2a_retention has passed, or it is archived: use a2a get {task_id}")


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 min 20 s" for 200 seconds."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"
