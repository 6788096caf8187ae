"""Output of the commands: readable lines, or one line of ProtoJSON per event.

Text from agents is untrusted, so control characters are never written to the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from itertools import groupby
from threading import Event
from typing import Any, Generic, TypeVar

import click
from a2a.types import Artifact, Part, StreamResponse, Task, TaskStatus, TaskStatusUpdateEvent
from a2a.utils.errors import A2AError
from google.protobuf.message import Message as Proto

from ..client import AnswerField, Result, state_name
from ..client.errors import field_errors
from ..client.event_parser import to_json
from ..client.input_request import choice_text, fields_of
from ..client.result import ResultBuilder
from ..lifecycle.end_reasons import end_reason
from ..lifecycle.own_metadata import (
    ATTEMPT,
    CELERY_STATE,
    CONTINUES_AT,
    EXECUTION,
    MAX_ATTEMPTS,
    NAMESPACE,
    NEXT_ATTEMPT_AT,
    WAITS_FOR,
)
from ..lifecycle.questions import schema_in, whole_numbers
from ..lifecycle.signals import kind_of_signal
from ..lifecycle.states import SUBMITTED, WORKING

T = TypeVar("T")

STATE_PREFIX = "TASK_STATE_"

EPOCH = datetime.fromtimestamp(0, UTC)

MAX_PROGRESS = 200
"""Maximum number of characters of the progress that a task reports."""


def error_line(error: Exception) -> str:
    """Return an error and its reference on one line. Invalid fields that the text of a protocol error omits are
    appended."""
    data = error.data if isinstance(error, A2AError) and isinstance(error.data, Mapping) else {}
    fields = field_errors(error) if isinstance(error, A2AError) else ""
    return with_reference(printable(" ".join(f"{error}{fields}".split())), data.get("reference"))


def as_json(message: Proto) -> str:
    """Return a message as one line of ProtoJSON. See `json_line`."""
    return json_line(to_json(message))


def json_line(value: Any, *, indent: int | None = None) -> str:
    """Return a JSON value as one line or, with `indent`, as several lines. Control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


def json_object(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass instance, with names in camelCase."""
    words = ((name.split("_"), value) for name, value in asdict(instance).items())
    return {first + "".join(map(str.title, rest)): value for (first, *rest), value in words}


class EventPrinter:
    """Printer of a task's events. A chunk of text continues the line of its artifact, so that streamed text reads
    without breaks. A status update without a message is printed only if the state, the attempt, the progress or the
    reason to wait changed. If a task is received again, for example by a new subscription, only what has not been
    printed is printed.

    If `as_lines` is True, each event is printed as one line of ProtoJSON instead.
    """

    def __init__(self, *, as_lines: bool) -> None:
        self._as_lines = as_lines
        self._printed = ResultBuilder()
        self._activity = ""
        """Activity in the last status."""
        self._artifact_id = ""
        """Id of the artifact whose line is open, or ""."""
        self._separator = ""
        """Text to print before the next chunk: the colon after the label, or the white space of the last chunk."""

    def show(self, event: StreamResponse) -> None:
        """Print one event."""
        if self._as_lines:
            click.echo(as_json(event))
        else:
            self._print(event)
        self._printed.add(event)

    def result(self) -> Result:
        """Return the result of the events that have been printed."""
        return self._printed.result()

    def end_line(self) -> None:
        """End the line of an artifact, if one is open."""
        if self._artifact_id:
            self._artifact_id = ""
            click.echo()

    def _print(self, event: StreamResponse) -> None:
        match event.WhichOneof("payload"):
            case "task" if event.task.id and event.task.id == self._printed.task_id:
                self._print_difference(event.task)
            case "task":
                self._print_line("\n".join(_heading(event.task)))
                self._activity = _activity(event.task)
                for artifact in event.task.artifacts:
                    self._print_artifact(artifact)
            case "artifact_update":
                self._print_artifact(event.artifact_update.artifact, is_continued=event.artifact_update.append)
            case "status_update":
                self._print_status(event.status_update)
            case "message":
                self._print_line(_text_with_label("message", event.message.parts))
            case other:
                self._print_line(f"({other})")

    def _print_difference(self, task: Task) -> None:
        """Print the difference between `task` and the events that have been printed."""
        printed_artifacts = {artifact.artifact_id: artifact for artifact in self.result().artifacts}
        for artifact in task.artifacts:
            printed = printed_artifacts.get(artifact.artifact_id)
            if artifact == printed:
                continue
            text, printed_text = _text(artifact), "" if printed is None else _text(printed)
            if _is_text(artifact) and text.startswith(printed_text):
                rest = Artifact(artifact_id=artifact.artifact_id, name=artifact.name)
                rest.parts.add(text=text[len(printed_text) :])
                self._print_artifact(rest, is_continued=True)
            else:
                self._print_artifact(artifact)
        if not self._printed.has_status(task.status) or _activity(task) != self._activity:
            self._print_status(task)

    def _print_status(self, source: Task | TaskStatusUpdateEvent) -> None:
        status, activity = source.status, _activity(source)
        new_activity = "" if activity == self._activity else activity
        if status.HasField("message") or status.state != self._printed.state or new_activity:
            self._print_line(_status(status, new_activity))
        self._activity = activity

    def _print_artifact(self, artifact: Artifact, *, is_continued: bool = False) -> None:
        if not _is_text(artifact):
            self._print_line(_artifact(artifact))
            return
        if not is_continued or artifact.artifact_id != self._artifact_id:
            self.end_line()
            click.echo(_artifact_label(artifact), nl=False)
            self._artifact_id, self._separator = artifact.artifact_id, ": "
        chunk = _text(artifact)
        text = self._separator + chunk
        printed_text = text.rstrip() if chunk.strip() else ""
        click.echo("\n  ".join(map(printable, printed_text.splitlines())), nl=False)
        self._separator = text[len(printed_text) :]

    def _print_line(self, line: str) -> None:
        self.end_line()
        click.echo(line)


def print_task(task: Task, as_lines: bool, agent: str = "") -> None:
    """Print a task as one line of ProtoJSON, or as readable text; see `task_lines`."""
    click.echo(as_json(task) if as_lines else task_lines(task, agent))


def task_lines(task: Task, agent: str = "") -> str:
    """Return a task with its status and its artifacts as readable text.

    Args:
        task: The task.
        agent: Name of the task's agent, which is shown with the time of the status, or "" to omit both.
    """
    return "\n".join([*_heading(task, agent), *map(_artifact, task.artifacts)])


def _heading(task: Task, agent: str = "") -> Iterator[str]:
    yield printable(f"task {task.id} (context {task.context_id})")
    if agent:
        yield f"agent {agent}, updated {time_text(task.status.timestamp.ToDatetime())} UTC"
    yield _status(task.status)
    yield from _suspension(task)


def table(
    heading: Sequence[str],
    lines: Iterable[Sequence[str]],
    width: int | None = None,
    *,
    fixed: Collection[str] = (),
    optional: Sequence[str] = (),
    times: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a heading and lines in aligned columns. No cell is truncated.

    If lines are too long, these steps follow until the lines fit: optional columns are omitted, times are shortened,
    and columns other than the first and `fixed` are moved below their line, starting with the last.

    Args:
        width: Maximum length of a line. None means the width of the terminal, or no limit without a terminal.
        fixed: Columns that stay on the line even if the line is too long, such as ids for the user to type.
        optional: Columns to omit, in this order.
        times: Columns of UTC times that start with the date. A short time omits the current date or year.
    """
    width = terminal_width() if width is None else width
    cell_lists = [[printable(cell) for cell in line] for line in lines]
    columns = {name: [name, *(cells[number] for cells in cell_lists)] for number, name in enumerate(heading)}
    below = {} if width is None else _fit(columns, width, {heading[0], *fixed}, optional, times)
    gap = "  " if width is None or _line_width(columns, "  ") <= width else " "
    widths = {name: _width(column) for name, column in columns.items()}
    for number in range(len(cell_lists) + 1):
        yield gap.join(f"{columns[name][number]:{widths[name]}}" for name in columns).rstrip()
        notes = [f"{name} {column[number]}" for name, column in below.items() if column[number] not in ("", "-")]
        if number and notes:
            yield wrap_text(f"  {'  '.join(notes)}", "    ", width)


def time_of(at_us: int) -> datetime:
    """Return a time in µs since 1970 as a time in UTC."""
    return EPOCH + timedelta(microseconds=at_us)


def time_text(time: datetime) -> str:
    """Return a time with seconds, without its time zone."""
    return f"{time:%Y-%m-%d %H:%M:%S}"


def duration(seconds: float) -> str:
    """Return a duration in its two largest units, such as "3 min 20 s" for 200 seconds."""
    whole = max(0, int(seconds))
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


def shown_size(count: float | None) -> str:
    """Return a number of bytes in the largest unit that fits, such as "1.5 KiB"."""
    size = float(count or 0)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024 or unit == "GiB":
            break
        size /= 1024
    return f"{size:,.0f} {unit}" if unit == "bytes" else f"{size:,.1f} {unit}"


def terminal_width() -> int | None:
    """Return the width of the terminal, or None if stdout is not a terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def printable(text: str) -> str:
    """Return `text` with a replacement character in place of each control character, including newlines."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def wrap_text(text: str, indent: str = "  ", width: int | None = None) -> str:
    """Return `text` in lines of at most `width` characters. All lines except the first start with `indent`.

    Args:
        width: Maximum length of a line. None means the width of the terminal, or no limit without a terminal.
    """
    width = terminal_width() if width is None else width
    if width is None:
        return text
    return "\n".join(
        textwrap.wrap(text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    )


def truncate_text(text: str, most: int) -> str:
    """Return `text`, or its beginning and an ellipsis if it is longer than `most` characters."""
    return text if len(text) <= most else text[: most - 1] + "…"


def _fit(
    columns: dict[str, list[str]], width: int, fixed: Collection[str], optional: Sequence[str], times: Sequence[str]
) -> dict[str, list[str]]:
    """Remove columns and shorten times until the lines fit `width`. Return the columns to show below each line."""
    for name in optional:
        if _line_width(columns) > width:
            columns.pop(name, None)
    now = datetime.now(UTC)
    for name in times:
        if _line_width(columns) > width:
            columns[name] = [cell.removeprefix(f"{now:%Y-%m-%d }").removeprefix(f"{now:%Y-}") for cell in columns[name]]
    below: dict[str, list[str]] = {}
    for name in reversed([name for name in columns if name not in fixed]):
        if _line_width(columns) > width:
            below = {name: columns.pop(name)} | below
    return below


def _width(column: Sequence[str]) -> int:
    return max(map(len, column))


def _line_width(columns: Mapping[str, Sequence[str]], gap: str = " ") -> int:
    return sum(map(_width, columns.values())) + len(gap) * (len(columns) - 1)


@dataclass(frozen=True)
class Column(Generic[T]):
    """Value of each item that commands print: a column of a table for a reader, and a member of a JSON object for a
    script.

    Attributes:
        heading: Heading of the column, or "" for a value that only scripts receive.
        member: Name of the member, or "" for a value that only readers see.
        value: Function that returns the value of an item. A time is printed in ISO 8601, or with seconds in a table.
        text: Function that returns the cell of an item, or None to show the value.
    """

    heading: str
    member: str
    value: Callable[[T], Any]
    text: Callable[[T], str] | None = None

    def cell(self, item: T) -> str:
        """Return the cell of an item. An empty cell is "-"."""
        value = self.value(item) if self.text is None else self.text(item)
        return time_text(value) if isinstance(value, datetime) else "-" if value in (None, "") else str(value)


@dataclass(frozen=True)
class Table(Generic[T]):
    """Form in which commands print items of one kind: a table for a reader, or one line of JSON per item for a script.

    Attributes:
        columns: Values of an item.
        fields_of: Function that returns the JSON object of an item, or None for the members of `columns`.
        sparse: Columns that are omitted if all their cells are empty.
        fixed: See `table`.
        optional: See `table`.
    """

    columns: Sequence[Column[T]]
    fields_of: Callable[[T], Mapping[str, Any]] | None = None
    sparse: Collection[str] = ()
    fixed: Collection[str] = ()
    optional: Sequence[str] = ()

    def fields(self, item: T) -> dict[str, Any]:
        """Return the JSON object of an item."""
        if self.fields_of is not None:
            return dict(self.fields_of(item))
        values = {column.member: column.value(item) for column in self.columns if column.member}
        return {name: value.isoformat() if isinstance(value, datetime) else value for name, value in values.items()}

    def lines(self, items: Sequence[T], width: int | None = None) -> Iterator[str]:
        """Return a heading and a line for each item. See `table` for `width`."""
        shown = {column.heading: column for column in self.columns if column.heading}
        columns = {heading: list(map(column.cell, items)) for heading, column in shown.items()}
        for heading in self.sparse:
            if set(columns[heading]) <= {"-"}:
                del columns[heading]
        times = [heading for heading in columns if items and isinstance(shown[heading].value(items[0]), datetime)]
        cells = zip(*columns.values(), strict=True)
        return table(list(columns), cells, width, fixed=self.fixed, optional=self.optional, times=times)

    def print(self, items: Sequence[T], as_lines: bool, empty: str = "", *, limit: int | None = None) -> None:
        """Print items for a reader or a script.

        Args:
            items: Items to print.
            as_lines: True to print one line of JSON per item.
            empty: Readable line that is printed instead of the heading if there are no items, or "".
            limit: Maximum number of items to print. A readable table ends with a line about further tasks.
        """
        shown = items[:limit]
        if as_lines:
            lines: Iterable[str] = (json_line(self.fields(item)) for item in shown)
        else:
            lines = self.lines(shown) if items or not empty else [empty]
        for line in lines:
            click.echo(line)
        if len(shown) < len(items) and not as_lines:
            click.echo("… more tasks exist: raise --limit")


TASKS = Table[tuple[str, Task]](
    [
        Column("TASK", "", lambda pair: pair[1].id),
        Column("STATE", "", lambda pair: state_name(pair[1].status.state)),
        Column("AGENT", "", lambda pair: pair[0]),
        Column("UPDATED (UTC)", "", lambda pair: pair[1].status.timestamp.ToDatetime()),
        Column("REASON", "", lambda pair: " ".join(filter(None, end_reason(pair[1].status.state, pair[1].status)))),
        Column("CONTEXT", "", lambda pair: pair[1].context_id),
    ],
    fields_of=lambda pair: to_json(pair[1]),
    sparse=["REASON"],
    optional=["CONTEXT"],
)
"""Table of tasks that gateways return, each with the name of its agent."""


def repeat(show: Callable[[], None], interval: float | None) -> None:
    """Call `show` every `interval` seconds until Ctrl-C, or once if `interval` is None."""
    with suppress(KeyboardInterrupt):
        show()
        while interval is not None:
            Event().wait(interval)
            show()


@contextmanager
def progress_bar(label: str, length: int) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr if stderr is a terminal, and yield a function that advances the bar by a number of
    steps. Commands that print a line for each step need no bar.

    Args:
        length: Number of steps. 0 and 1 mean no bar.
    """
    is_hidden = length < 2 or not sys.stderr.isatty()
    with click.progressbar(length=length, label=label, file=sys.stderr, hidden=is_hidden) as bar:
        yield bar.update


def with_reference(text: str, reference: object) -> str:
    """Return `text` with the reference that identifies a failure in the server's log."""
    return f"{text} [reference {printable(reference)}]" if isinstance(reference, str) and reference else text


def field_prompt(field: AnswerField) -> str:
    """Return the prompt for a field of an answer, with its description, the expected input and the default."""
    hints = {"integer": "a whole number", "number": "a number", "boolean": "yes or no", "json": "JSON"}
    expected = " or ".join(map(choice_text, field.choices)) or hints.get(field.kind, "")
    about = "; ".join(text for text in (field.description.rstrip("."), expected) if text)
    default = {True: "yes", False: "no"}.get(field.default) if field.kind == "boolean" else None
    if default is None:
        default = "none" if field.default is None else choice_text(field.default)
    label = f"{field.label} ({about})" if about else field.label
    return " ".join(printable(label if field.required else f"{label} [{default}]").split()) + ": "


def _status(status: TaskStatus, activity: str = "") -> str:
    line = _text_with_label(state_name(status.state), status.message.parts if status.HasField("message") else ())
    if activity:
        line = f"{line} ({activity})" if status.HasField("message") else f"{line}: {activity}"
    reference = status.message.metadata.fields.get("reference")
    return with_reference(line, reference and reference.string_value)


def _activity(source: Task | TaskStatusUpdateEvent) -> str:
    """Return the attempt, the progress and the reason to wait of a task that has not ended, or ""."""
    if source.status.state not in (SUBMITTED, WORKING):
        return ""
    return ", ".join((*_attempt(source), *_progress(source), *_suspension(source)))


def _own_values(source: Task | TaskStatusUpdateEvent, *keys: str) -> Iterator[Any]:
    """Yield the values of this package's metadata, or "" for a key without a value."""
    fields = source.metadata.fields
    for key in keys:
        yield whole_numbers(to_json(fields[NAMESPACE + key])) if NAMESPACE + key in fields else ""


def _attempt(source: Task | TaskStatusUpdateEvent) -> Iterator[str]:
    attempt, max_attempts, when = _own_values(source, ATTEMPT, MAX_ATTEMPTS, NEXT_ATTEMPT_AT)
    if attempt:
        text = f"attempt {attempt} of {max_attempts}" if max_attempts else f"attempt {attempt}"
        yield printable(f"{text} at {_second(when)}" if when else text)


def _progress(source: Task | TaskStatusUpdateEvent) -> Iterator[str]:
    """Yield the state and the metadata that a Celery task has passed to ``update_state``, such as "step 2 of 5"."""
    [state] = _own_values(source, CELERY_STATE)
    if not state:
        return
    fields = {key: value for key, value in whole_numbers(to_json(source.metadata)).items() if not _is_own(key)}
    total = next((fields.pop(key) for key in ("of", "total") if len(fields) == 2 and key in fields), None)
    values = (f"{key} {v if isinstance(v, str) else json.dumps(v, ensure_ascii=False)}" for key, v in fields.items())
    text = ", ".join(sorted(values)) + (f" of {total}" if total is not None else "")
    text = f"{state} {text}".strip() if state != "PROGRESS" else text
    if text:
        yield truncate_text(printable(text), MAX_PROGRESS)


def _is_own(key: str) -> bool:
    return key.startswith(NAMESPACE) or key in (ATTEMPT, MAX_ATTEMPTS, NEXT_ATTEMPT_AT, CELERY_STATE, EXECUTION)


def _suspension(source: Task | TaskStatusUpdateEvent) -> Iterator[str]:
    """Yield the signal or the task, and the time, for which a suspended task waits."""
    name, when = _own_values(source, WAITS_FOR, CONTINUES_AT)
    kind, target = kind_of_signal(name)
    if name:
        yield printable(f"waits for the {kind if kind == 'signal' else f'{kind} task'} {target}")
    if when:
        yield printable(f"{'times out' if name else 'continues'} at {_second(when)}")


def _second(time: str) -> str:
    """Return an ISO 8601 time up to the second, in UTC. A text that is not such a time is returned unchanged."""
    try:
        return datetime.fromisoformat(time).astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except ValueError:
        return time


def _artifact(artifact: Artifact) -> str:
    # chunks of streamed text are shown as a single text
    return _text_with_label(_artifact_label(artifact), artifact.parts, between_texts="")


def _artifact_label(artifact: Artifact) -> str:
    return printable(f"artifact {artifact.name or artifact.artifact_id}")


def _is_text(artifact: Artifact) -> bool:
    return bool(artifact.artifact_id) and all(part.HasField("text") for part in artifact.parts)


def _text(artifact: Artifact) -> str:
    return "".join(part.text for part in artifact.parts)


def _text_with_label(label: str, parts: Iterable[Part], between_texts: str = " ") -> str:
    text = ""
    for is_text, group in groupby(parts, key=lambda part: part.HasField("text")):
        content = (between_texts if is_text else " ").join(map(_part, group))
        text = f"{text} {content}" if text else content
    # continuation lines are indented, so that they visibly belong to the text
    indented_text = "\n  ".join(printable(line) for line in text.splitlines()).rstrip()
    return f"{printable(label)}: {indented_text}" if indented_text else printable(label)


def _part(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data" if (schema := schema_in([part])) is not None:
            # the text of a question to which a word is an answer has the words, and not the names of the fields
            is_word = isinstance(schema.get("type"), list) and "string" in schema["type"]
            return "" if is_word else f"(answer: {', '.join(field.name or field.kind for field in fields_of(schema))})"
        case "data":
            return json.dumps(whole_numbers(to_json(part.data)), ensure_ascii=False)
        case "url":
            return part.url
        case _:
            return f"[{len(part.raw)} bytes {part.media_type} {part.filename}]"
