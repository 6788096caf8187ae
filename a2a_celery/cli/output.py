"""Output of the commands: readable lines, or one line of ProtoJSON per event.

Text from agents is untrusted, so control characters are never written to the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Self

import click
from a2a.types import Artifact, Part, StreamResponse, Task, TaskStatus
from a2a.utils.errors import A2AError
from google.protobuf.message import Message as Proto

from ..client import AnswerField, Result, state_name
from ..client.event_parser import to_json
from ..client.input_request import choice_text, fields_of
from ..client.result import ResultBuilder
from ..lifecycle.own_metadata import CONTINUES_AT, NAMESPACE, WAITS_FOR
from ..lifecycle.questions import schema_in, whole_numbers

__all__ = [
    "STATE_PREFIX",
    "EventPrinter",
    "Progress",
    "as_json",
    "error_line",
    "field_prompt",
    "json_line",
    "printable",
    "state_name",
    "table",
    "task_lines",
    "task_table",
    "terminal_width",
    "truncate_text",
    "with_reference",
    "wrap_text",
]

STATE_PREFIX = "TASK_STATE_"

MIN_COLUMN = 8
"""Minimum width of the columns of a table that is too wide."""


def error_line(error: Exception) -> str:
    """Return an error and its reference on one line. Invalid fields that the text of a protocol error omits are
    appended. Malformed data, which a server may send, is omitted."""
    data = error.data if isinstance(error, A2AError) and isinstance(error.data, Mapping) else {}
    text = " ".join(str(error).split())
    errors = data.get("errors")
    for wrong in errors if isinstance(errors, list) else ():
        match wrong:
            case {"field": str(field), "message": str(message)} if field not in text:
                text += f"; {field}: {message}"
    return with_reference(printable(text), data.get("reference"))


def as_json(message: Proto) -> str:
    """Return a message as one line of ProtoJSON. See `json_line`."""
    return json_line(to_json(message))


def json_line(value: Any, *, indent: int | None = None) -> str:
    """Return a JSON value as one line or, with `indent`, as several lines. Control characters are escaped."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return "".join(c if c.isprintable() or c == "\n" else json.dumps(c)[1:-1] for c in text)


class EventPrinter:
    """Printer of a task's events. A chunk of text continues the line of its artifact, so that streamed text reads
    without breaks. A status update without a message is printed only if the state changed. If a task is received again,
    for example by a new subscription, only what has not been printed is printed.

    If `as_lines` is True, each event is printed as one line of ProtoJSON instead.
    """

    def __init__(self, *, as_lines: bool) -> None:
        self._as_lines = as_lines
        self._printed = ResultBuilder()
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
                for artifact in event.task.artifacts:
                    self._print_artifact(artifact)
            case "artifact_update":
                self._print_artifact(event.artifact_update.artifact, is_continued=event.artifact_update.append)
            case "status_update":
                self._print_status(event.status_update.status)
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
        if not self._printed.has_status(task.status):
            self._print_status(task.status)

    def _print_status(self, status: TaskStatus) -> None:
        if status.HasField("message") or status.state != self._printed.state:
            self._print_line(_status(status))

    def _print_artifact(self, artifact: Artifact, *, is_continued: bool = False) -> None:
        if not _is_text(artifact):
            self._print_line(_artifact(artifact))
            return
        if not is_continued or artifact.artifact_id != self._artifact_id:
            self.end_line()
            self._begin(artifact)
        self._continue(_text(artifact))

    def _print_line(self, line: str) -> None:
        self.end_line()
        click.echo(line)

    def _begin(self, artifact: Artifact) -> None:
        click.echo(printable(f"artifact {artifact.name or artifact.artifact_id}"), nl=False)
        self._artifact_id, self._separator = artifact.artifact_id, ": "

    def _continue(self, chunk: str) -> None:
        text = self._separator + chunk
        printed_text = text.rstrip()
        if chunk.strip():
            click.echo("\n  ".join(map(printable, printed_text.splitlines())), nl=False)
            text = text[len(printed_text) :]
        self._separator = text


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
        yield f"agent {agent}, updated {_updated_at(task)} UTC"
    yield _status(task.status)
    yield from _suspension(task)


def task_table(tasks: Sequence[tuple[str, Task]]) -> Iterable[str]:
    """Yield a heading and a line for each (agent, task) pair."""
    cells = []
    for agent, task in tasks:
        cells.append((task.id, state_name(task.status.state), agent, _updated_at(task), task.context_id))
    heading = ("TASK", "STATE", "AGENT", "UPDATED (UTC)", "CONTEXT")
    return table(heading, cells, ids=["TASK"], optional=["CONTEXT"], times=["UPDATED (UTC)"])


def _updated_at(task: Task) -> str:
    return str(task.status.timestamp.ToDatetime().strftime("%Y-%m-%d %H:%M:%S"))


def table(
    heading: Sequence[str],
    lines: Iterable[Sequence[str]],
    width: int | None = None,
    *,
    ids: Collection[str] = (),
    optional: Sequence[str] = (),
    times: Sequence[str] = (),
    below: Sequence[str] = (),
) -> Iterator[str]:
    """Yield a heading and lines in aligned columns.

    If lines are too long, these steps follow until the lines fit: columns without a value and optional columns are
    omitted, times are shortened, and columns are moved below their line. Then all columns except the first, `ids` and
    `times` are narrowed, starting with the last. Lines that are still too long are truncated after their ids.

    Args:
        width: Maximum length of a line. None means the width of the terminal, or no limit without a terminal.
        ids: Columns of ids for the user to type. The ids are never truncated.
        optional: Columns to omit, in this order.
        times: Columns of UTC times that start with the date. A short time omits the current date or year.
        below: Columns to move below their line, in this order.
    """
    width = terminal_width() if width is None else width
    cell_lists = [[printable(cell) for cell in line] for line in lines]
    columns = {name: [cells[number] for cells in cell_lists] for number, name in enumerate(heading)}
    notes = {} if width is None else _shorten(columns, width, optional, times, below)
    gap = "  " if width is None or _line_width(columns, "  ") <= width else " "
    widths = _widths(columns)
    if width is not None:
        _narrow(widths, width - len(gap) * (len(widths) - 1), {*ids, *times})
    ids_end = _end_of_ids(widths, ids)
    for number in range(-1, len(cell_lists)):
        cells = {name: name if number < 0 else column[number] for name, column in columns.items()}
        text = gap.join(f"{truncate_text(cell, widths[name]):{widths[name]}}" for name, cell in cells.items()).rstrip()
        yield text if width is None else max(text[:ids_end], truncate_text(text, width), key=len)
        values = {} if number < 0 else {name: column[number] for name, column in notes.items()}
        note = "  ".join(f"{name} {value}" for name, value in values.items() if value not in ("", "-"))
        if note:
            yield wrap_text(f"  {note}", "    ", width)


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


def _shorten(
    columns: dict[str, list[str]], width: int, optional: Sequence[str], times: Sequence[str], below: Sequence[str]
) -> dict[str, list[str]]:
    """Remove columns and shorten times until the lines fit `width`. Return the columns to show below each line."""
    without_value = [name for name in list(columns)[1:] if set(columns[name]) == {"-"}]
    for name in (*without_value, *optional):
        if _line_width(columns) > width:
            columns.pop(name, None)
    if _line_width(columns) > width:
        now = datetime.now(UTC)
        for name in times:
            columns[name] = [cell.removeprefix(f"{now:%Y-%m-%d }").removeprefix(f"{now:%Y-}") for cell in columns[name]]
    order = list(columns)
    moved: dict[str, list[str]] = {}
    for name in below:
        if name in columns and _line_width(columns) > width:
            moved[name] = columns.pop(name)
    return {name: moved[name] for name in order if name in moved}


def _widths(columns: Mapping[str, Sequence[str]]) -> dict[str, int]:
    return {name: max(map(len, (name, *column))) for name, column in columns.items()}


def _line_width(columns: Mapping[str, Sequence[str]], gap: str = " ") -> int:
    return sum(_widths(columns).values()) + len(gap) * (len(columns) - 1)


def _end_of_ids(widths: Mapping[str, int], ids: Collection[str]) -> int:
    """Return the width of a line up to its last id, or 0 if no column has ids."""
    names = list(widths)
    count = max((names.index(name) + 1 for name in ids), default=0)
    return sum(list(widths.values())[:count]) + max(0, count - 1)


def _narrow(widths: dict[str, int], most: int, whole: Collection[str]) -> None:
    """Narrow the columns to at least `MIN_COLUMN`, from the last to the second, until the sum of all widths is at most
    `most`. The columns `whole` keep their width."""
    for name in list(widths)[:0:-1]:
        if name not in whole:
            excess = max(0, sum(widths.values()) - most)
            widths[name] -= min(excess, max(0, widths[name] - MIN_COLUMN))


class Progress:
    """Progress bar of a long command on stderr. The bar is shown only if stderr is a terminal.

    Lines are printed immediately, except that lines for the bar's terminal are printed when the bar is finished.
    """

    def __init__(self, label: str, length: int) -> None:
        self._bar: Any = None
        self._later: list[tuple[str, bool]] = []
        if sys.stderr.isatty() and length > 1:
            self._bar = click.progressbar(length=length, label=label, file=sys.stderr)

    def __enter__(self) -> Self:
        if self._bar is not None:
            self._bar.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.__exit__(*error)
        for line, is_error in self._later:
            click.echo(line, err=is_error)

    def advance(self, steps: int = 1) -> None:
        """Advance the bar."""
        if self._bar is not None:
            self._bar.update(steps)

    def echo(self, line: str, *, err: bool = False) -> None:
        """Print a line on stdout, or on stderr if `err` is True."""
        if self._bar is not None and (err or sys.stdout.isatty()):
            self._later.append((line, err))
        else:
            click.echo(line, err=err)


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


def _status(status: TaskStatus) -> str:
    line = _text_with_label(state_name(status.state), status.message.parts if status.HasField("message") else ())
    reference = status.message.metadata.fields.get("reference")
    return with_reference(line, reference and reference.string_value)


def _suspension(task: Task) -> Iterator[str]:
    """Yield lines with the signal and the time for which a suspended task waits."""
    fields = {
        name: task.metadata.fields[NAMESPACE + name].string_value
        for name in (WAITS_FOR, CONTINUES_AT)
        if NAMESPACE + name in task.metadata.fields
    }
    if WAITS_FOR in fields:
        yield f"waits for the signal {printable(fields[WAITS_FOR])}"
    if CONTINUES_AT in fields:
        yield f"continues at {printable(fields[CONTINUES_AT])}"


def _artifact(artifact: Artifact) -> str:
    # chunks of streamed text are shown as a single text
    return _text_with_label(f"artifact {artifact.name or artifact.artifact_id}", artifact.parts, between_texts="")


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
            return f"(answer: {', '.join(field.name or field.kind for field in fields_of(schema))})"
        case "data":
            return json.dumps(whole_numbers(to_json(part.data)), ensure_ascii=False)
        case "url":
            return part.url
        case _:
            return f"[{len(part.raw)} bytes {part.media_type} {part.filename}]"
