"""Output of the commands: readable lines, or one line of ProtoJSON per event.

Text from agents is untrusted, so control characters are never written to the terminal.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from a2a.types import Artifact, Part, StreamResponse, Task, TaskStatus
from a2a.utils.errors import A2AError
from google.protobuf.message import Message as Proto

from ..client import AnswerField, state_name
from ..client.event_parser import to_json
from ..client.input_request import choice_text, fields_of
from ..lifecycle.own_metadata import CONTINUES_AT, NAMESPACE, WAITS_FOR
from ..lifecycle.questions import schema_in

__all__ = [
    "STATE_PREFIX",
    "as_json",
    "error_line",
    "event_line",
    "field_prompt",
    "state_name",
    "table",
    "task_lines",
    "task_table",
    "with_reference",
]

STATE_PREFIX = "TASK_STATE_"


def error_line(error: A2AError) -> str:
    """Return an error of the protocol on one line, with its reference, and with its fields unless the text names
    them."""
    data = error.data if isinstance(error.data, Mapping) else {}
    text = " ".join(error.message.split())
    for wrong in data.get("errors") or ():
        if str(wrong["field"]) not in text:
            text += f"; {wrong['field']}: {wrong['message']}"
    return with_reference(_printable(text), data.get("reference"))


def as_json(message: Proto) -> str:
    """Return one line of ProtoJSON."""
    return json.dumps(to_json(message), ensure_ascii=False)


def event_line(event: StreamResponse) -> str:
    """Return one event as readable text."""
    match event.WhichOneof("payload"):
        case "task":
            return task_lines(event.task)
        case "message":
            return _labelled("message", event.message.parts)
        case "status_update":
            return _status(event.status_update.status)
        case "artifact_update":
            return _artifact(event.artifact_update.artifact)
        case other:
            return f"({other})"


def task_lines(task: Task) -> str:
    """Return a task with its status and its artifacts as readable text."""
    lines = [f"task {task.id} (context {task.context_id})", _status(task.status), *_suspension(task)]
    return "\n".join([*lines, *map(_artifact, task.artifacts)])


def task_table(tasks: Sequence[tuple[str, Task]]) -> Iterable[str]:
    """Yield a heading and a line for each (agent, task) pair."""
    cells = []
    for agent, task in tasks:
        updated = task.status.timestamp.ToDatetime().strftime("%Y-%m-%d %H:%M:%S")
        cells.append((task.id, state_name(task.status.state), agent, updated, task.context_id))
    return table(("TASK", "STATE", "AGENT", "UPDATED", "CONTEXT"), cells)


def table(heading: Sequence[str], lines: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield a heading and lines in aligned columns. On a terminal, lines are truncated to its width."""
    cells = [heading, *lines]
    widths = [max(len(line[i]) for line in cells) for i in range(len(heading))]
    most = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in cells:
        text = "  ".join(f"{_printable(cell):{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        yield text if most is None or len(text) <= most else text[: most - 1] + "…"


def with_reference(text: str, reference: object) -> str:
    """Return `text` with the reference of a failure, which identifies the failure in the server's log."""
    return f"{text} [reference {_printable(reference)}]" if isinstance(reference, str) and reference else text


def field_prompt(field: AnswerField) -> str:
    """Return the prompt for a field of an answer, with its description, the expected input and the default."""
    hints = {"integer": "a whole number", "number": "a number", "boolean": "yes or no", "json": "JSON"}
    wanted = " or ".join(map(choice_text, field.choices)) or hints.get(field.kind, "")
    about = "; ".join(one for one in (field.description.rstrip("."), wanted) if one)
    default = {True: "yes", False: "no"}.get(field.default) if field.kind == "boolean" else None
    if default is None:
        default = "none" if field.default is None else choice_text(field.default)
    label = f"{field.label} ({about})" if about else field.label
    return " ".join(_printable(label if field.required else f"{label} [{default}]").split()) + ": "


def _status(status: TaskStatus) -> str:
    line = _labelled(state_name(status.state), status.message.parts if status.HasField("message") else ())
    reference = status.message.metadata.fields.get("reference")
    return with_reference(line, reference and reference.string_value)


def _suspension(task: Task) -> Iterator[str]:
    """Yield lines that say until when the run of a task is suspended."""
    shown = {
        name: task.metadata.fields[NAMESPACE + name].string_value
        for name in (WAITS_FOR, CONTINUES_AT)
        if NAMESPACE + name in task.metadata.fields
    }
    if WAITS_FOR in shown:
        yield f"waits for the signal {_printable(shown[WAITS_FOR])}"
    if CONTINUES_AT in shown:
        yield f"continues at {_printable(shown[CONTINUES_AT])}"


def _artifact(artifact: Artifact) -> str:
    # chunks of streamed text are shown as a single text
    return _labelled(f"artifact {artifact.name or artifact.artifact_id}", artifact.parts, between_texts="")


def _labelled(what: str, parts: Iterable[Part], between_texts: str = " ") -> str:
    text = ""
    for is_text, some in groupby(parts, key=lambda part: part.HasField("text")):
        content = (between_texts if is_text else " ").join(map(_part, some))
        text = f"{text} {content}" if text else content
    # continuation lines are indented, so that they visibly belong to the text
    shown = "\n  ".join(_printable(line) for line in text.splitlines()).rstrip()
    return f"{_printable(what)}: {shown}" if shown else _printable(what)


def _part(part: Part) -> str:
    match part.WhichOneof("content"):
        case "text":
            return part.text
        case "data" if (schema := schema_in([part])) is not None:
            return f"(answer: {', '.join(field.name or field.kind for field in fields_of(schema))})"
        case "data":
            return json.dumps(to_json(part.data), ensure_ascii=False)
        case "url":
            return part.url
        case _:
            return f"[{len(part.raw)} bytes {part.media_type} {part.filename}]"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)
