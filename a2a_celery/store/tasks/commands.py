"""Commands on tasks: create, continue, cancel, read, list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from a2a.types import Message, SendMessageRequest, Task, TaskState, TaskStatus

from ...lifecycle.events import EventId, timestamp
from ...lifecycle.outcomes import CANCELED_BY_CLIENT, agent_message, status_event
from ...lifecycle.states import CANCELED, SUBMITTED, WORKING
from ..blobs.references import encode, encode_request, met
from ..codec import event_arguments, require_blobs_retained, require_contents, state_of, task_from_snapshot
from ..keys import Keys, Scope
from ..operation import Argument, Operation, script
from ..webhooks.push_configs import NewPushConfig, config_arguments
from .limits import TaskLimits, limit_argument
from .results import (
    CanceledNow,
    CancelRequested,
    Conflict,
    Continued,
    Created,
    Ended,
    FinalTask,
    Known,
    Limited,
    Missing,
    Page,
    continued,
    not_created,
    stopped,
)

FIRST_PUBLISH_GRACE_US = 5_000_000
"""How long whoever created a run has to publish it before a watcher does."""

MAX_WAITING_TURNS = 100
"""How many messages may wait for the run before them; one more is refused."""


TASK_ENDED_FIRST = "taskEndedFirst"
"""Metadata, true, of a message in the history that never had its turn: it waited, and the task ended."""


@dataclass(frozen=True, slots=True)
class ReplyChannel:
    """Notification channel of the gateway that creates a task.

    With `final_only`, it receives final states only.
    """

    channel: str
    final_only: bool


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Accepts a message id once in `window_ms` milliseconds; the same `digest` under it is the same message."""

    message_id: str
    digest: str
    window_ms: int


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
    idempotency_key: IdempotencyKey | None = None,
    push: NewPushConfig | None = None,
    serialize_context: bool = False,
    limits: TaskLimits | None = None,
    reply_channel: ReplyChannel | None = None,
) -> Operation[Created | Known | Conflict | Limited]:
    """A task in SUBMITTED with `request`'s message in its history, run 1, and the promise to dispatch it.

    `caller` is kept for the worker and `options` for publishers, as they are; `retention` is in seconds. Without `once`
    any message id is a new one. `push` is owed every event, the first too; of a `Known` message it isn't saved, and it
    is never `Limited`: of such a message nothing is. With `serialize_context` the context runs one task at a time.
    `reply_channel` receives the notifications of the task.
    """
    task = Task(id=task_id, context_id=context_id, status=TaskStatus(state=SUBMITTED), history=[request.message])

    def parse(reply: Sequence[bytes]) -> Created | Known | Conflict | Limited:
        require_blobs_retained(reply)
        if reply[0] == b"created":
            task.status.timestamp.CopyFrom(timestamp(int(reply[1])))
            return Created(task, EventId(1, int(reply[1])), reply[2] == b"1")
        return not_created(reply)

    names = keys.task(task_id)
    return Operation(
        script("create_task"),
        names,
        [
            task_id,
            context_id,
            *(str(scope), keys.scope_index(scope), keys.context_index(scope, context_id), scope.agent, scope.owner),
            retention,
            *(keys.leases, keys.dispatch, FIRST_PUBLISH_GRACE_US),
            encode_request(request),
            caller,
            encode(task),
            encode(status_event(task_id, context_id, SUBMITTED)),
            "0",
            encode(request.message),
            encode(status_event(task_id, context_id, WORKING)),
            options,
            *_idempotency_arguments(keys, scope, idempotency_key),
            keys.context_queue(scope, context_id) if serialize_context else "",
            limit_argument(keys, scope, limits),
            *(("", 0) if reply_channel is None else (reply_channel.channel, int(reply_channel.final_only))),
            *config_arguments(keys, push),
        ],
        parse,
    )


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
    idempotency_key: IdempotencyKey | None = None,
    push: NewPushConfig | None = None,
    limits: TaskLimits | None = None,
    max_bytes: int | None = None,
) -> Operation[Continued]:
    """A further message to a task: it begins the next run, or waits for the end of the one that is open.

    `request.message` must already carry the task's and context's ids; `context_id` is what the client named, "" for
    nothing. `nonce` makes a repeated call the same call, `once` a message that a client repeats the same message.
    `push` is saved with the message if that begins a turn or waits; it is owed what comes from then on. `limits` are
    for a message that begins a run. With the message the task may have `max_bytes`, None for any number.
    """
    message = request.message
    return Operation(
        script("continue_task"),
        keys.task(task_id),
        [
            str(scope),
            context_id,
            nonce,
            FIRST_PUBLISH_GRACE_US,
            encode(message),
            encode(status_event(task_id, message.context_id, SUBMITTED)),
            encode_request(request),
            caller,
            MAX_WAITING_TURNS,
            options,
            *_idempotency_arguments(keys, scope, idempotency_key),
            encode(Message(metadata={TASK_ENDED_FIRST: True})),
            limit_argument(keys, scope, limits),
            "" if max_bytes is None else max_bytes,
            *config_arguments(keys, push),
        ],
        continued,
        resolve_blobs=False,  # it is accepted, also where its task can't be shown right now
    )


def request_cancel(
    keys: Keys, scope: Scope, task_id: str, context_id: str, *, text: str = CANCELED_BY_CLIENT
) -> Operation[Missing | Ended | CanceledNow | CancelRequested]:
    """Cancels a task that nobody runs, else tells its runner; asking again changes nothing.

    `text` is the message of the task's CANCELED, unless its agent stops with a message of its own.
    """
    event = status_event(task_id, context_id, CANCELED, agent_message(text, task_id, context_id))

    def parse(reply: Sequence[bytes]) -> Missing | Ended | CanceledNow | CancelRequested:
        match reply[0]:
            case b"missing":
                return Missing()
            case b"ended":
                return Ended(state_of(reply[1]))
            case b"canceled":
                return CanceledNow(int(reply[1]) if reply[1] else None, int(reply[2]), reply[3])
            case _:
                return CancelRequested(int(reply[1]))

    return Operation(
        script("request_cancel"),
        keys.task(task_id),
        [str(scope), keys.runner(""), uuid4().hex, *event_arguments([event])],
        parse,
    )


def read_task(
    keys: Keys,
    scope: Scope | None,
    task_id: str,
    *,
    history_length: int | None = None,
    artifacts: bool = True,
    resolve_blobs: bool = True,
) -> Operation[tuple[Task, EventId] | None]:
    """The task and the id of its newest event; None when there is none in `scope` (None: in any). A history_length of
    None is all.

    One that is not `whole` is for no one to see: it asks no object store, and lacks the parts that are there.
    """

    def parse(reply: Any) -> tuple[Task, EventId] | None:
        return None if reply is None else task_from_snapshot(reply)

    return Operation(
        script("read_task"),
        keys.task(task_id),
        ["*" if scope is None else str(scope), _length(history_length), int(artifacts), 0],
        parse,
        resolve_blobs,
    )


def unlist_task(keys: Keys, task_id: str) -> Operation[bool]:
    """Take an ended task out of the lists of tasks. Return False if no such task has ended.

    For a task whose client received the agent's message alone, and so knows of no task.
    """
    return Operation(script("unlist_task"), keys.task(task_id), [], bool)


def read_final_task(
    keys: Keys, scope: Scope, task_id: str, *, history_length: int | None = None
) -> Operation[FinalTask | None]:
    """The task if it has ended or waits for its client; None while it goes on, and when there is none in `scope`."""
    return Operation(script("read_task"), keys.task(task_id), [str(scope), _length(history_length), 1, 1], stopped)


def list_tasks(
    keys: Keys,
    scope: Scope,
    *,
    retention: int,
    page_size: int,
    context_id: str = "",
    state: TaskState | None = None,
    not_before_us: int | None = None,
    cursor: tuple[int, str] | None = None,
    history_length: int | None = None,
    artifacts: bool = False,
    blob_bytes: int | None = None,
    max_bytes: int | None = None,
    archived: bool = False,
) -> Operation[Page]:
    """A page of the scope's tasks, newest status first. `cursor` is (µs of the status, id) of the last task seen.

    A page ends early before the task with which it would have more than `max_bytes`, and behind `blob_bytes` of large
    parts; None: never. It has one task at least. With `archived`, ended tasks leave the lists when
    they are in the archive, and not by their age.
    """

    def parse(reply: Sequence[Any]) -> Page:
        total, more, border, *snapshots = reply
        require_contents(snapshots)
        found: list[Task] = []
        for one in snapshots:
            found.append(task_from_snapshot(one)[0])
            if blob_bytes is not None and met() > blob_bytes:
                break
        cut = len(found) < len(snapshots)
        return Page(found, int(total), cut or more == b"1", int(border) if border else None)

    return Operation(
        script("list_tasks"),
        [keys.context_index(scope, context_id) if context_id else keys.scope_index(scope)],
        [
            int(state or 0),
            "-inf" if not_before_us is None else not_before_us,
            page_size,
            cursor[0] if cursor else "",
            cursor[1] if cursor else "",
            _length(history_length),
            int(artifacts),
            keys.prefix,
            retention,
            keys.installation if archived else "",
            "" if max_bytes is None else max_bytes,
        ],
        parse,
    )


def _idempotency_arguments(keys: Keys, scope: Scope, key: IdempotencyKey | None) -> list[Argument]:
    return ["", "", 0] if key is None else [keys.message(scope, key.message_id), key.digest, key.window_ms]


def _length(history_length: int | None) -> int:
    return -1 if history_length is None else history_length


def end_pauses(keys: Keys, *, limit: int, latest_us: int | None = None) -> Operation[int]:
    """Fail up to `limit` tasks whose pause has lasted too long. Return how many were due.

    A pause that was over only after `latest_us`, in µs of the store's clock, is not over; None: any time is believed.
    """
    latest = "" if latest_us is None else latest_us
    return Operation(script("end_pauses"), [keys.pauses], [keys.prefix, limit, latest], int)
