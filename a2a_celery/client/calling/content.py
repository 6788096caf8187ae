"""Content of a step's message, and errors of steps. Content is text, bytes, data, parts, messages and results of
earlier steps.

The arguments of the errors are JSON, so that every result backend can restore the errors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from a2a.types import Message, Part, Role
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.json_format import MessageToDict, ParseDict, ParseError

from ...lifecycle.events import jsonable, parts_of
from ...lifecycle.fold import joined_texts
from ...lifecycle.json_values import portable
from ...lifecycle.parents import name_parent
from ...lifecycle.states import CANCELED, FAILED, REJECTED
from ..errors import RemoteError
from ..result import Result


def to_portable(content: Any) -> Any:
    """Return `content` as a JSON value for a Celery message.

    Raises:
        TypeError: JSON cannot represent `content`.
    """
    if isinstance(content, Message | Part):
        return _as_message(content)
    if isinstance(content, Result):
        return content.to_dict()
    if isinstance(content, list | tuple) and any(isinstance(item, Message | Part | Result) for item in content):
        return [to_portable(item) for item in content]
    if isinstance(content, bytes):
        return _as_message(Part(raw=content, media_type="application/octet-stream"))
    try:
        return jsonable(content)
    except InvalidAgentResponseError:
        raise TypeError(_NOT_SENT.format(type(content).__name__)) from None


def message_of(
    contents: Sequence[Any],
    message_id: str,
    task_id: str = "",
    context_id: str = "",
    *,
    parent_id: str = "",
    cancel_with_parent: bool = True,
) -> Message:
    """Return one message with all `contents`.

    The id, metadata, extensions and references of a message in the contents are kept.

    Args:
        contents: Arguments of the step: the previous result, if there is one, followed by the step's own contents in
            reverse order.
        message_id: Id of the message, unless the contents include a message with an id.
        task_id: Id of a task that waits for the message, or "".
        context_id: Id of the context of a new task, or "".
        parent_id: Id of the A2A task whose agent published the step, or "".
        cancel_with_parent: False if the remote task must not be cancelled with its parent.

    Raises:
        TypeError: A message cannot carry one of the contents.
        ValueError: The contents are empty or invalid.
    """
    message = Message()
    for content in reversed(contents):
        for piece in _pieces(content):
            message.MergeFrom(piece)
    if not message.parts:
        raise ValueError("there is nothing to send: pass text, data or a message, or let an earlier step return it")
    message.role = Role.ROLE_USER
    message.message_id = message.message_id or message_id
    message.task_id = task_id or message.task_id
    message.context_id = context_id or message.context_id
    name_parent(message, parent_id, cancel=cancel_with_parent)
    return message


_NOT_SENT = "a message cannot carry this {}: pass text, JSON data, parts, or a message"


def _pieces(content: Any) -> Iterator[Message]:
    if content is None:
        return
    if isinstance(content, Mapping):
        yield _of_mapping(content)
    elif isinstance(content, list | tuple) and any(_is_rich(item) for item in content):  # results of a group
        for item in content:
            yield from _pieces(item)
    else:
        yield Message(parts=_parts(content))


def _of_mapping(content: Mapping[str, Any]) -> Message:
    if _is_result(content):
        return Message(parts=_without_seams(Result.from_dict(content)))
    if not _is_message(content):
        return Message(parts=_parts(dict(content)))
    try:
        return ParseDict(portable(dict(content), "message"), Message())
    except ParseError as e:
        raise ValueError(f"a dict with parts must be a valid message: {e}") from None


def _without_seams(result: Result) -> list[Part]:
    """Return the parts of `result`, with the text chunks of each artifact joined."""
    if result.parts != [part for artifact in result.artifacts for part in artifact.parts]:
        return result.parts
    return [part for artifact in result.artifacts for part in joined_texts(artifact.parts)]


def _parts(content: Any) -> list[Part]:
    try:
        return parts_of(content)
    except InvalidAgentResponseError:
        raise TypeError(_NOT_SENT.format(type(content).__name__)) from None


def _is_rich(content: Any) -> bool:
    """Return True if `content` is a result or a message instead of plain data."""
    return isinstance(content, Mapping) and (_is_result(content) or _is_message(content))


def _is_message(content: Mapping[str, Any]) -> bool:
    return isinstance(content.get("parts"), list)


def _is_result(content: Mapping[str, Any]) -> bool:
    return {"version", "stop_reason", "task", "message"} <= content.keys()


def _as_message(content: Message | Part) -> dict[str, Any]:
    message = Message(parts=[content]) if isinstance(content, Part) else content
    fields: dict[str, Any] = MessageToDict(message)
    return fields


MAX_TEXT_LENGTH = 500
"""Maximum number of characters of the agent's text in an error message. The result contains the complete text."""


class CallEnded(RemoteError):
    """Error for a remote task that did not complete."""

    def __init__(self, text: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(text, data)  # result backends rebuild the error from its args
        self._data = data

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:  # for logs and Flower
        return f"{type(self).__name__}({self.args[0]!r})"

    @property
    def result(self) -> Result:
        """Result of the remote task, or an empty result if unknown."""
        return Result() if self._data is None else Result.from_dict(self._data)


class CallFailed(CallEnded):
    """Error for a remote task that is FAILED."""


class CallRejected(CallEnded):
    """Error for a remote task that is REJECTED."""


class CallCanceled(CallEnded):
    """Error for a remote task that is CANCELED, although this step did not cancel it."""


class CallInterrupted(CallEnded):
    """Error for a remote task in INPUT_REQUIRED or AUTH_REQUIRED, which continues when a client answers the
    question."""


class CallTimedOut(CallEnded):
    """Error for a remote task that exceeded the step's `timeout` and is being cancelled."""


_BY_STATE: dict[int | None, tuple[type[CallEnded], str]] = {
    FAILED: (CallFailed, "the task failed"),
    REJECTED: (CallRejected, "the agent rejected the task"),
    CANCELED: (CallCanceled, "the task was canceled"),
}


def error_of(url: str, result: Result) -> CallEnded | None:
    """Return the error for a result, or None if the task is completed or continues."""
    if result.stop_reason == "interrupt":
        return call_error(CallInterrupted, url, "the agent asks", result)
    entry = _BY_STATE.get(result.state)
    return None if entry is None else call_error(entry[0], url, entry[1], result)


def call_error(kind: type[CallEnded], url: str, problem: str, result: Result) -> CallEnded:
    """Return an error of the class `kind` whose message ends with the agent's text."""
    text = result.text[:MAX_TEXT_LENGTH]
    return kind(f"{url}: {problem}{': ' if text else ''}{text}", result_data(result))


def result_data(result: Result) -> dict[str, Any]:
    """Return `result` as a JSON object. The task's history is omitted, to keep Celery messages and results small."""
    data = result.to_dict()
    if data["task"]:
        data["task"].pop("history", None)
    return data
