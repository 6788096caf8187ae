"""Commands that create, continue, cancel, read and list tasks."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from a2a.types import Message, SendMessageRequest, StreamResponse, Task, TaskStatus
from google.protobuf.struct_pb2 import Struct

from ...lifecycle.events import EventId, timestamp
from ...lifecycle.outcomes import CANCELED_BY_CLIENT, agent_message, status_event
from ...lifecycle.references import Scope
from ...lifecycle.refusals import Reason, Refusal
from ...lifecycle.states import CANCELED, SUBMITTED, WORKING
from ...telemetry.logs import LineLimit
from ..blobs.references import encode, referenced_bytes
from ..codec import (
    DECODE_ERRORS,
    Position,
    StatusToWrite,
    encode_request,
    pack_metadata,
    require_contents,
    snapshot_is_resolved,
    snapshot_size,
    state_of,
    task_from_snapshot,
)
from ..keys import AnyScope, ExactScope, Keys
from ..operation import Operation
from ..verbs import Digits, Key, Reply, Section, Sections, TaskId, Unsent, parsed_by, verb
from .replies import (
    Accepted,
    CanceledNow,
    CancelRequested,
    FinalTask,
    NotFinal,
    Page,
    Reasons,
    final_task,
    refusal,
)

R = TypeVar("R")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_lines = LineLimit()


def acquire_request(keys: Keys, scope: Scope, *, per_second: float, burst: int) -> Operation[float]:
    """Take a token from the account's bucket for a request.

    An account has one bucket for all agents. If the connection breaks, the call is repeated and may take two tokens.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the request, which determines the account.
        per_second: Tokens that are added to the bucket per second.
        burst: Capacity of the bucket in tokens.

    Returns:
        0 if the token was taken, or else the seconds until the bucket has a token.
    """
    return _acquire_request(keys.requests(scope), per_second, burst)


@verb
def _acquire_request(bucket: Key, per_second: float, burst: int) -> Reply[float]:
    return Reply(lambda reply: int(reply) / 1e6)


MAX_WAITING_TURNS = 100
"""Maximum number of messages of a task that wait until a run ends."""

TASK_ENDED_FIRST = "taskEndedFirst"
"""Metadata key, with the value true, in a message whose task ended before the message was processed."""


class ReplyChannel(NamedTuple):
    """Notification channel of the gateway that creates a task.

    Attributes:
        channel: Name of the channel.
        final_only: True if the channel receives final states only.
    """

    channel: str
    final_only: bool


def create_task(
    keys: Keys,
    scope: Scope,
    task_id: str,
    context_id: str,
    request: SendMessageRequest,
    *,
    caller: bytes,
    retention: int,
    options: bytes = b"",
    serialize_context: bool = False,
    is_nearly_full: bool = False,
    reply_channel: ReplyChannel | None = None,
    metadata: Struct | None = None,
    sections: Sequence[Section[R]] = (),
) -> Operation[Accepted | R | Refusal]:
    """Create a task in SUBMITTED with the message of `request` in its history, and queue its first run.

    Args:
        keys: Keys of the deployment.
        scope: Agent, tenant and owner of the task.
        task_id: Id of the task. A repeated call with the id of an existing task of `scope` changes nothing.
        context_id: Id of the task's context. A repeated call returns the id of the stored task's context.
        request: Request whose message contains the ids of the task and the context.
        caller: Stored form of the caller.
        retention: Seconds for which the ended task is stored.
        options: Stored options of the first run, or b"" for none.
        serialize_context: True to execute the runs of the context one after the other.
        is_nearly_full: True to refuse the message because the server's memory is nearly full.
        reply_channel: Notification channel of the calling gateway, or None.
        metadata: Metadata of the task, or None.
        sections: Sections of features.
    """
    task = Task(
        id=task_id,
        context_id=context_id,
        status=TaskStatus(state=SUBMITTED),
        history=[request.message],
        metadata=metadata,
    )
    return _create_task(
        keys,
        task_id,
        context_id=context_id,
        scope=scope,
        agent=scope.agent,
        retention=retention,
        request=encode_request(request),
        caller=caller,
        task_event=encode(task),
        status_event=encode(status_event(task_id, context_id, SUBMITTED)),
        working_event=encode(status_event(task_id, context_id, WORKING)),
        options=options,
        context_queue=keys.context_queue(scope, context_id) if serialize_context else None,
        is_nearly_full=is_nearly_full,
        metadata=None if metadata is None else pack_metadata(metadata),
        reply_channel=reply_channel,
        sections=sections,
        reply=Reply(partial(_created, task, sections)),
    )


@verb
def _create_task(
    keys: Keys,
    task_id: TaskId,
    context_id: str,
    scope: ExactScope,
    agent: str,
    retention: int,
    request: bytes,
    caller: bytes,
    task_event: bytes,
    status_event: bytes,
    working_event: bytes,
    options: bytes,
    context_queue: str | None,
    is_nearly_full: bool,
    metadata: bytes | None,
    reply_channel: ReplyChannel | None,
    sections: Sections,
    reply: Unsent[Reply[T]],
) -> Reply[T]:
    return reply


CREATE_REASONS: Reasons = {
    b"limited": (Reason.LIMITED, {}),
    b"id_conflict": (Reason.SAME_TASK_ID, {}),
}


def _created(task: Task, sections: Sequence[Section[R]], reply: Sequence[bytes]) -> Accepted | R | Refusal:
    """Parse the reply of ``create_task``."""
    if reply[0] != b"created":
        return parsed_by(sections, task.id, reply) or refusal(task.id, reply, CREATE_REASONS)
    _, at, is_blocked, is_published, context_id, description = reply
    task.context_id = context_id.decode()
    task.status.timestamp.CopyFrom(timestamp(int(at)))
    task.MergeFrom(StreamResponse.FromString(description).task)
    newest = EventId(1, int(at))
    blocked, published = is_blocked == b"1", is_published == b"1"
    return Accepted(task, newest, 1, is_blocked=blocked, is_published=published, since=newest)


def continue_task(
    keys: Keys,
    scope: Scope,
    task_id: str,
    request: SendMessageRequest,
    context_id: str,
    *,
    caller: bytes,
    nonce: str,
    options: bytes = b"",
    is_nearly_full: bool = False,
    max_bytes: int | None = None,
    on_message: str = "queue",
    sections: Sequence[Section[R]] = (),
) -> Operation[Accepted | R | Refusal]:
    """Accept a further message to a task. If no run is open, the message begins the next run.

    Args:
        keys: Keys of the deployment.
        scope: Agent, tenant and owner of the task.
        task_id: Id of the task.
        request: Request whose message contains the ids of the task and the context.
        context_id: Context id that the client sent, or "".
        caller: Stored form of the caller.
        nonce: Token that detects a repeated call.
        options: Stored options of the run, or b"" for none.
        is_nearly_full: True to refuse the message because the server's memory is nearly full.
        max_bytes: Maximum size of the task including the message, in bytes, or None for no limit.
        on_message: ``Agent.on_message``.
        sections: Sections of features.
    """
    message = request.message
    return _continue_task(
        keys,
        task_id,
        scope=scope,
        context_id=context_id,
        nonce=nonce,
        message=encode(message),
        submitted=encode(status_event(task_id, message.context_id, SUBMITTED)),
        request=encode_request(request),
        caller=caller,
        options=options,
        suffix=encode(Message(metadata={TASK_ENDED_FIRST: True})),
        is_nearly_full=is_nearly_full,
        max_bytes=max_bytes,
        on_message=on_message,
        sections=sections,
        reply=Reply(
            partial(_continued, task_id, max_bytes, sections),
            resolve_blobs=False,  # a message is accepted even if the object store is unavailable
        ),
    )


@verb
def _continue_task(
    keys: Keys,
    task_id: TaskId,
    scope: ExactScope,
    context_id: str,
    nonce: str,
    message: bytes,
    submitted: bytes,
    request: bytes,
    caller: bytes,
    options: bytes,
    suffix: bytes,
    is_nearly_full: bool,
    max_bytes: int | None,
    on_message: str,
    sections: Sections,
    reply: Unsent[Reply[T]],
) -> Reply[T]:
    """`context_id` is "" if the client sent none. `suffix` is added to the message if the task ends before the message
    is processed."""
    return reply


CONTINUE_REASONS: Reasons = {
    b"missing": (Reason.MISSING, {}),
    b"context": (Reason.OTHER_CONTEXT, {}),
    b"ended": (Reason.ENDED, {}),
    b"working": (Reason.WORKING, {}),
    b"full": (Reason.TOO_MANY_MESSAGES, {"maximum": MAX_WAITING_TURNS}),
    b"limited": (Reason.LIMITED, {}),
}


def _continued(
    task_id: str, max_bytes: int | None, sections: Sequence[Section[R]], reply: Sequence[Any]
) -> Accepted | R | Refusal:
    """Parse the reply of ``continue_task``."""
    match reply[0]:
        case b"begun":
            run, snapshot, is_blocked, is_published = reply[1:]
            accepted = _accepted(snapshot)
            return replace(accepted, run=int(run), is_blocked=is_blocked == b"1", is_published=is_published == b"1")
        case b"delivered":
            return _accepted(reply[1])
        case b"waiting":
            return replace(_accepted(reply[2]), preceding_turns=int(reply[1]))
        case _:
            too_large: Reasons = {b"large": (Reason.TOO_LARGE, {"maximum": max_bytes})}
            return parsed_by(sections, task_id, reply) or refusal(task_id, reply, {**CONTINUE_REASONS, **too_large})


def _accepted(snapshot: list[Any]) -> Accepted:
    task, newest = task_from_snapshot(snapshot)
    return Accepted(task, newest, is_resolved=snapshot_is_resolved(snapshot), since=newest)


@verb
def read_next_run(keys: Keys, task_id: TaskId) -> Reply[int | None]:
    """Read the number of the run that the next message to a task begins.

    Returns:
        The number, or None if a run is open or the task does not exist.
    """
    return Reply(lambda reply: int(reply) if reply else None)


def request_cancel(
    keys: Keys, scope: Scope, task_id: str, context_id: str, *, text: str = CANCELED_BY_CLIENT
) -> Operation[CanceledNow | CancelRequested | Refusal]:
    """Cancel a task without a claimed run, or ask the worker to cancel the run.

    If the cancellation of the run was requested before, the worker is notified again, and the earlier `text` is used.

    Args:
        text: Text of the message in the CANCELED status, unless the agent sends its own message.
    """
    event = status_event(task_id, context_id, CANCELED, agent_message(text, task_id, context_id))
    return _request_cancel(keys, task_id, scope, uuid4().hex, event)


@verb
def _request_cancel(
    keys: Keys, task_id: TaskId, scope: ExactScope, nonce: str, event: StatusToWrite
) -> Reply[CanceledNow | CancelRequested | Refusal]:
    def parse(reply: Sequence[bytes]) -> CanceledNow | CancelRequested | Refusal:
        match reply[0]:
            case b"canceled":
                return CanceledNow(int(reply[1]) if reply[1] else None, int(reply[2]), reply[3])
            case b"requested":
                return CancelRequested(int(reply[1]))
            case _:
                return refusal(
                    task_id, reply, {b"missing": (Reason.MISSING, {}), b"ended": (Reason.NOT_CANCELABLE, {})}
                )

    return Reply(parse)


def read_task(
    keys: Keys,
    scope: Scope | None,
    task_id: str,
    *,
    history_length: int | None = None,
    artifacts: bool = True,
    resolve_blobs: bool = True,
) -> Operation[tuple[Task, EventId] | None]:
    """Read a task and the id of its newest event.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the task, or None for any scope.
        task_id: Id of the task.
        history_length: Number of newest messages to read, or None for all messages.
        artifacts: False to omit the artifacts.
        resolve_blobs: False to leave blob references unresolved. A client must not receive such a task.

    Returns:
        The task and the event id, or None if `scope` has no such task.
    """

    def parse(reply: Any) -> tuple[Task, EventId] | None:
        return None if reply is None else task_from_snapshot(reply)

    reply = Reply(parse, resolve_blobs, lambda reply: 0 if reply is None else snapshot_size(reply))
    return _read_task(keys, task_id, scope, history_length, artifacts, final_only=False, reply=reply)


@verb
def _read_task(
    keys: Keys,
    task_id: TaskId,
    scope: AnyScope,
    history_length: int | None,
    artifacts: bool,
    final_only: bool,
    reply: Unsent[Reply[T]],
) -> Reply[T]:
    """With `final_only`, only a task in a final state is read."""
    return reply


@verb
def unlist_task(keys: Keys, task_id: TaskId) -> Reply[bool]:
    """Remove an ended task from the indexes and from the list of tasks to archive.

    Callers unlist a task if the client has received only the agent's message and does not know the task id.

    Returns:
        False if the task does not exist or has not ended.
    """
    return Reply(bool)


@verb
def delete_task(keys: Keys, scope: ExactScope, task_id: TaskId) -> Reply[int]:
    """Delete all data of a task, in any state.

    Returns:
        1, or 0 if `scope` has no such task.
    """
    return Reply(int)


def read_final_task(
    keys: Keys, scope: Scope, task_id: str, *, history_length: int | None = None
) -> Operation[FinalTask | NotFinal | None]:
    """Read a terminal or interrupted task.

    Returns:
        The task, `NotFinal` if it is in any other state, or None if it is not in `scope`.
    """
    return _read_task(keys, task_id, scope, history_length, True, final_only=True, reply=Reply(final_task))


@verb
def list_tasks(
    keys: Keys,
    scope: ExactScope,
    *,
    retention: int,
    page_size: int,
    context_id: str = "",
    state: int | None = None,
    not_before_us: Digits | None = None,
    cursor: Position | None = None,
    history_length: int | None = None,
    artifacts: bool = False,
    blob_bytes: Unsent[int | None] = None,
    max_bytes: int | None = None,
    archived: bool = False,
) -> Reply[Page]:
    """Read a page of the tasks of a scope, newest status first.

    Args:
        keys: Keys of the deployment.
        scope: Agent, tenant and owner of the tasks.
        retention: Seconds for which ended tasks are stored.
        page_size: Maximum number of tasks on the page.
        context_id: Id of the tasks' context, or "" for all contexts.
        state: State of the tasks, or None or 0 for all states.
        not_before_us: Earliest time of the status in µs since 1970, or None for no limit.
        cursor: Last task on the previous page, or None.
        history_length: Number of newest messages of each task, or None for all messages.
        artifacts: True to read the artifacts.
        blob_bytes: Bytes of large parts after which the page ends, or None for no limit.
        max_bytes: Maximum total size of the tasks on a page in bytes, except for a single larger task, or None for no
            limit.
        archived: True if ended tasks are removed from the indexes when they are archived, instead of when they expire.
    """
    return Reply(
        partial(_page, blob_bytes),
        size=lambda reply: sum(snapshot_size(entry[4]) for entry in reply[3:] if len(entry) > 4),
    )


def _page(blob_bytes: int | None, reply: Sequence[Any]) -> Page:
    total, more, border, *listed = reply
    require_contents([snapshot for *_, snapshot in listed if isinstance(snapshot, list)])
    tasks: list[Task] = []
    for entry in listed:
        tasks.append(_listed_task(*entry))
        if blob_bytes is not None and referenced_bytes() > blob_bytes:
            break
    return Page(tasks, int(total), more == b"1" or len(tasks) < len(listed), int(border) if border else None)


def _listed_task(
    task_id: bytes, context_id: bytes, state: bytes, at_us: bytes, snapshot: list[Any] | None = None
) -> Task:
    """Return a task of a list. A task that cannot be read has no contents, so that the other tasks can be listed."""
    try:
        if snapshot is not None:
            return task_from_snapshot(snapshot)[0]
        reason = "the script could not unpack it"
    except DECODE_ERRORS as e:
        reason = str(e) or type(e).__name__
    task = Task(id=task_id.decode(), context_id=context_id.decode())
    task.status.state = state_of(state)
    task.status.timestamp.FromMicroseconds(int(at_us))
    if _lines.admit() is not None:
        logger.error("task %s cannot be read and is listed without its contents: %s", task.id, reason)
    return task


@verb
def end_pauses(keys: Keys, *, limit: int) -> Reply[int]:
    """Fail up to `limit` tasks whose pause has timed out.

    Args:
        keys: Keys of the deployment.
        limit: Maximum number of tasks.

    Returns:
        The number of due pauses.
    """
    return Reply(int)
