"""Tasks of all callers, for operator commands: access to the store without a gateway, the filters of ``list``,
``cancel --all`` and commands of features, and the table of the selected tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import update_wrapper
from typing import Any, TypeVar, cast

import click
from a2a.types import TaskState
from click.core import ParameterSource

from ...app import A2A
from ...client import state_name
from ...dispatch import Publisher
from ...errors import BlobsUnavailable, StoreUnavailable
from ...lifecycle.execution import process_of, worker_of
from ...operations.service import TaskService, run_sync
from ...settings.urls import url_address
from ...store import Keys, SyncStore
from ...store.admin.scan import TaskSummary
from ...store.admin.schema import open_store, require_compatible
from ...store.admin.start_check import reason_of
from ...store.blobs.blob_store import blobs_of
from ..app_loader import load_configured_a2a, unknown_agent
from ..completion import complete_agent
from ..options import Decorator, with_options
from ..output import STATE_PREFIX, Column, Table, time_of

T = TypeVar("T")

STATES = sorted(name.removeprefix(STATE_PREFIX).lower() for name in TaskState.keys()[1:])

AGE_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

TIME_FORMATS = "2030-01-31T12:00 (UTC), or how long ago: 90s, 15m, 2h, 7d"
"""Values of the options whose type is `When`, for help and errors."""

GATEWAY_OPTIONS = ("url", "header", "bearer_file", "api_key_file")
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

    @property
    def scope(self) -> tuple[str | None, str | None, str | None]:
        return self.agent, self.tenant, self.owner

    @property
    def states(self) -> frozenset[TaskState]:
        """States that match the filter `state`."""
        states = STATES if self.state is None else [self.state]
        return frozenset(cast(TaskState, TaskState.Value(STATE_PREFIX + state.upper())) for state in states)

    @property
    def bounds(self) -> dict[str, Any]:
        """Bounds of the time at which a task entered its state, as arguments of `tasks_in`."""
        return {"not_before_us": _microseconds(self.since), "not_after_us": _microseconds(self.until)}

    def has_time(self, at: datetime) -> bool:
        """Return True if `at` is between `since` and `until`, and no other filter is set."""
        return self._is_between(at) and replace(self, since=None, until=None) == Selection()

    def __contains__(self, task: TaskSummary) -> bool:
        values = (task.agent, task.scope.tenant, task.scope.owner, task.context_id)
        filters = (*self.scope, self.context_id)
        return (
            all(expected in (None, actual) for expected, actual in zip(filters, values, strict=True))
            and task.state in self.states
            and self._is_between(time_of(task.since_us))
            and (self.begun is None or (task.claimed_us > 0 and time_of(task.claimed_us) <= self.begun))
        )

    def _is_between(self, at: datetime) -> bool:
        return (self.since is None or at >= self.since) and (self.until is None or at <= self.until)


def _microseconds(time: datetime | None) -> int | None:
    return None if time is None else round(time.timestamp() * 1_000_000)


FILTERS: Mapping[str, Decorator] = {
    "agent": click.option("--agent", shell_complete=complete_agent, help="Only the tasks of this agent."),
    "tenant": click.option("--tenant", help='Only the task or tasks of this tenant; "" for tasks without one.'),
    "owner": click.option("--owner", help='Only the tasks of this caller; "" for tasks without one.'),
    "context_id": click.option("--context", "context_id", help="Only the tasks of this context."),
    "state": click.option(
        "--state",
        type=click.Choice(STATES, case_sensitive=False),
        metavar="STATE",
        help=f"Only the tasks in this state: {', '.join(STATES)}.",
    ),
    "since": click.option(
        "--since",
        type=When(),
        help=f"Only tasks that entered their state at this time or later. WHEN is {TIME_FORMATS}.",
    ),
    "until": click.option("--until", type=When(), help="Only tasks that entered their state at this time or earlier."),
    "begun": click.option(
        "--begun", type=When(), help="Only tasks whose newest run a worker began at this time or earlier."
    ),
}
"""Command-line options by the field of `Selection` that they set."""


def selecting(*names: str) -> Decorator:
    """Return a decorator that adds the options for the fields `names` of `Selection` to a command."""
    return with_options(*(FILTERS[name] for name in names))


def select(
    a2a: A2A, selection: Selection, tasks: Iterable[TaskSummary], *, limit: int | None = None
) -> list[TaskSummary]:
    """Return those of `tasks` that match `selection`, each once, or the first `limit` of them.

    Raises:
        click.ClickException: No task matches, and the app has no agent with the name in `selection`.
    """
    selected: dict[str, TaskSummary] = {}
    for task in tasks:
        if len(selected) == limit:
            break
        if task in selection:
            selected.setdefault(task.ref.task_id, task)
    require_agent(a2a, selection.agent, has_tasks=bool(selected))
    return list(selected.values())


def _reason_text(task: TaskSummary) -> str:
    return ", ".join(filter(None, (task.reason, "dead letter" * task.is_resubmittable)))


SUMMARIES = Table[TaskSummary](
    [
        Column("TASK", "task", lambda task: task.ref.task_id),
        Column("STATE", "state", lambda task: state_name(task.state)),
        Column("AGENT", "agent", lambda task: task.agent),
        Column("SINCE (UTC)", "since", lambda task: time_of(task.since_us)),
        Column("", "begun", lambda task: time_of(task.claimed_us) if task.claimed_us else None),
        Column("", "run", lambda task: task.ref.run),
        Column("", "attempt", lambda task: task.attempt),
        Column("", "worker", lambda task: worker_of(task.runner) or None),
        Column("", "process", lambda task: process_of(task.runner) or None),
        Column("REASON", "reason", lambda task: task.reason, _reason_text),
        Column("", "deadLetter", lambda task: task.is_resubmittable),
        Column("REFERENCE", "reference", lambda task: task.reference or None),
        Column("TENANT", "tenant", lambda task: task.scope.tenant),
        Column("OWNER", "owner", lambda task: task.scope.owner),
        Column("CONTEXT", "contextId", lambda task: task.context_id),
    ],
    sparse=["REASON", "REFERENCE", "TENANT", "OWNER"],
    optional=["CONTEXT"],
)


StoreMode = Callable[..., None]
"""Function that a client command calls to use the store. It receives the context of the command, the value of the
option that selects it unless the option is a flag, and the values of the options that apply to it, by name."""


def with_store_modes(
    modes: Mapping[str, StoreMode], *options: Decorator, used_by: Mapping[str, Collection[str]], general: str = ""
) -> Decorator:
    """Return a decorator that adds options to a client command. With the options of `modes`, the command uses the store
    instead of a gateway.

    `GATEWAY_OPTIONS` on the command line are refused with these options. Variables such as ``A2A_BEARER_FILE`` are
    ignored, because other commands in the same shell use them.

    Args:
        modes: Functions to call instead of the command, by the parameter whose option selects them.
        options: Options, in the order of the command's help.
        used_by: Modes that use a parameter, for parameters that not all modes use. "" stands for the gateway.
        general: Mode that another mode may be combined with, and that the other mode then replaces.
    """
    usable = dict.fromkeys(GATEWAY_OPTIONS, ("",)) | dict(used_by)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        def run(context: click.Context, /, **values: Any) -> Any:
            chosen = {name: value for name in modes if (value := values.pop(name)) not in (None, False)}
            if len(chosen) > 1:
                chosen.pop(general, None)
            if len(chosen) > 1:
                raise click.UsageError(f"{' and '.join(_flags(context, chosen))} exclude each other")
            mode = next(iter(chosen), "")
            for name, users in usable.items():
                if mode in users:
                    continue
                del values[name]
                if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                    [flag] = _flags(context, [name])
                    if "" in users:
                        text = f"{_flags(context, chosen)[0]} reads the store, not a gateway: leave out {flag}"
                        raise click.UsageError(text)
                    raise click.UsageError(f"{flag} needs {' or '.join(_flags(context, users))}")
            if not mode:
                return command(**values)
            return modes[mode](context, *(value for value in chosen.values() if value is not True), **values)

        return with_options(*options)(click.pass_context(update_wrapper(run, command)))

    return decorate


def _flags(context: click.Context, names: Iterable[str]) -> list[str]:
    """Return the options of parameters, such as "--bearer-file"."""
    options = {parameter.name: max(parameter.opts, key=len) for parameter in context.command.params}
    return [options[name] for name in names]


@contextmanager
def operator_store(context: click.Context, agent: str | None) -> Iterator[tuple[A2A, SyncStore, Keys]]:
    """Open the store, and yield the command's A2A, the store and its keys.

    Raises:
        ConfigError: The app has no A2A, a setting is invalid, or the store has a different schema.
        click.ClickException: The app has no agent named `agent`, or the store or the blob store is unavailable.
    """
    a2a = load_configured_a2a(context)
    if agent is not None and agent not in a2a.agents:
        raise unknown_agent(a2a, agent)
    settings, keys = a2a.settings, Keys(a2a.settings.key_prefix)
    try:
        with closing(
            SyncStore(settings.store_url, blobs_of(settings), wait_replicas=settings.store_wait_replicas)
        ) as store:
            require_compatible(open_store(store, keys), None)
            yield a2a, store, keys
    except BlobsUnavailable as e:
        raise click.ClickException(f"{e}: is A2A_BLOB_URL the one that the workers use?") from e
    except StoreUnavailable as e:
        raise click.ClickException(unavailable_store(settings.store_url, e)) from e


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
