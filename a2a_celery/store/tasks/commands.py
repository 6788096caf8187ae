"""Commands that create, continue, cancel, read and list tasks, and the limits that their scripts check."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from uuid import uuid4

from a2a.types import Message, SendMessageRequest, Task, TaskState, TaskStatus

from ...lifecycle.events import EventId, timestamp
from ...lifecycle.outcomes import CANCELED_BY_CLIENT, agent_message, status_event
from ...lifecycle.states import CANCELED, SUBMITTED, WORKING
from ..blobs.references import detach_large_parts, encode, encode_request, referenced_bytes
from ..codec import (
    event_arguments,
    require_blobs_retained,
    require_contents,
    snapshot_size,
    state_of,
    task_from_snapshot,
)
from ..keys import Keys, Scope, quote_key_part
from ..operation import Argument, Operation, script
from ..webhooks.push_configs import NewPushConfig, config_arguments
from .family import NO_PARENT, Parent, parent_arguments
from .results import (
    CanceledNow,
    CancelRequested,
    Continued,
    Created,
    Ended,
    FinalTask,
    Missing,
    NotCreated,
    Page,
    final_task,
    not_created,
    parse_continuation,
)
from .schedules import NO_TICK, Tick, tick_arguments


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """Limits for accepting a message or a signal. None means no limit.

    The limits of bytes and memory always apply. The other limits apply only to a message that begins a run.

    Attributes:
        agents: Agents whose tasks count toward the limits of the owner.
        concurrent: Maximum number of the owner's tasks in SUBMITTED or WORKING.
        waiting: Maximum number of the owner's tasks in SUBMITTED.
        paused: Maximum number of the owner's interrupted tasks. This limit applies to new tasks only.
        queued: Maximum number of the agent's runs that no worker has claimed.
        owner_bytes: Maximum stored bytes of the owner's tasks, including the new message.
        store_bytes: Maximum stored bytes of all tasks, including the new message.
        memory: True to refuse the message or signal because the server's memory is nearly full.
    """

    agents: tuple[str, ...]
    concurrent: int | None = None
    waiting: int | None = None
    paused: int | None = None
    queued: int | None = None
    owner_bytes: int | None = None
    store_bytes: int | None = None
    memory: bool = False


def limit_argument(keys: Keys, scope: Scope, limits: TaskLimits | None) -> str:
    """Return `limits` as JSON for ``check_limits`` in ``scripts/lib``, or "" if there are no limits."""
    if limits is None:
        return ""
    of_tasks = {"concurrent": limits.concurrent, "waiting": limits.waiting, "paused": limits.paused}
    of_bytes = {"owner_bytes": limits.owner_bytes, "store_bytes": limits.store_bytes}
    maximums = {**of_tasks, **of_bytes, "queued": limits.queued}
    counts_tasks = any(limit is not None for limit in of_tasks.values())
    return json.dumps(
        {
            **{name: value for name, value in maximums.items() if value is not None},
            **({"stored": keys.stored} if of_bytes != dict.fromkeys(of_bytes) else {}),
            **({"memory": True} if limits.memory else {}),
            **({"queue": keys.queue(scope.agent)} if limits.queued is not None else {}),
            "lists": _lists(keys, scope, limits.agents) if counts_tasks else [],
            "metrics": keys.metrics,
            "agent": quote_key_part(scope.agent),
        }
    )


MAX_DEBT = 60
"""Maximum debt of a token bucket, in seconds that the bucket takes to refill to zero tokens."""


def acquire_request(
    keys: Keys, scope: Scope, *, per_second: float, burst: int, cost: int = 1, spare: int = 0, overdraw: bool = False
) -> Operation[float]:
    """Charge the account's token bucket for a request or its response.

    An account has one bucket for all agents. If the connection breaks, the call is repeated and may charge the bucket
    twice.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the request, which determines the account.
        per_second: Tokens that are added to the bucket per second.
        burst: Capacity of the bucket in tokens.
        cost: Tokens to remove from the bucket.
        spare: Tokens that must remain for a following request. `cost` and `spare` together must not exceed `burst`.
        overdraw: True to allow a negative balance. The debt never exceeds `MAX_DEBT`.

    Returns:
        0 if the tokens were removed, or else the seconds until the bucket has enough tokens. With `overdraw`, the
        tokens are always removed, and the result is the seconds until the bucket has `spare` tokens again.
    """
    return Operation(
        script("acquire_request"),
        [keys.requests(scope)],
        [repr(1_000_000 / per_second), burst, cost, spare, MAX_DEBT * 1_000_000, int(overdraw)],
        lambda reply: int(reply) / 1e6,
    )


def _lists(keys: Keys, scope: Scope, agents: Iterable[str]) -> list[str]:
    """Return the prefixes of the indexes of all tasks that count toward the limits of a caller in `scope`."""
    if not scope.owner:
        return [keys.scope_index(replace(scope, agent=agent)) for agent in agents]
    without_tenant = (keys.scope_index(Scope(agent, "", scope.owner)) for agent in agents)
    return [*without_tenant, keys.owner_index(scope.owner)]


FIRST_PUBLISH_GRACE_US = 5_000_000
"""µs after which a watcher publishes a run that its creator has not published."""

MAX_WAITING_TURNS = 100
"""Maximum number of messages of a task that wait until a run ends."""

TASK_ENDED_FIRST = "taskEndedFirst"
"""Metadata key, with the value true, in a message whose task ended before the message was processed."""


@dataclass(frozen=True, slots=True)
class ReplyChannel:
    """Notification channel of the gateway that creates a task.

    Attributes:
        channel: Name of the channel.
        final_only: True if the channel receives final states only.
    """

    channel: str
    final_only: bool


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """Idempotency key of a message.

    A message with the same id and digest is a repeated message. A message with the same id and a different digest is a
    conflict.

    Attributes:
        message_id: Id of the message.
        digest: Digest of the request.
        window_ms: Milliseconds for which the key is valid.
    """

    message_id: str
    digest: str
    window_ms: int


@dataclass(frozen=True, slots=True)
class BrokerMessage:
    """Celery message of a run, for a store and a broker in the same Redis process.

    The script that accepts the client's message pushes the Celery message to the broker, if the script executes in the
    Redis process `server` and the client's message begins the run `run`.

    Attributes:
        run: Name of the run, ``<task_id>.<run>``.
        server: ``run_id`` of the broker's Redis process.
        database: Database number of the broker.
        store_database: Database number of the store.
        queue: Redis list that receives `body`.
        body: Celery message as kombu would write it.
        event_channel: Channel of the ``task-sent`` event, or "" if there is no event.
        event: Event as kombu would publish it.
        delay_us: µs until a watcher publishes the run again if no worker has claimed it.
    """

    run: str
    server: str
    database: int
    store_database: int
    queue: str
    body: bytes
    event_channel: str
    event: bytes
    delay_us: int


def _message_arguments(message: BrokerMessage | None) -> list[Argument]:
    """Return the arguments of ``push_message`` in ``scripts/lib``."""
    if message is None:
        return [""] * 9
    return [
        message.server,
        message.run,
        *(message.database, message.store_database, message.queue, message.body),
        *(message.event_channel, message.event, message.delay_us),
    ]


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
    parent: Parent | None = None,
    message: BrokerMessage | None = None,
    tick: Tick | None = None,
) -> Operation[Created | NotCreated]:
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
        idempotency_key: Key that detects a repeated message, to which `limits` and `push` do not apply, or None.
        push: Push-notification config that receives the events of the task, or None.
        serialize_context: True to execute the runs of the context one after the other.
        limits: Limits for the message, or None for no limits.
        reply_channel: Notification channel of the calling gateway, or None.
        parent: Parent of the task, or None. A parent of another tenant or owner is ignored.
        message: Celery message of the run, or None if the caller publishes the run.
        tick: Tick of the schedule that creates the task, or None.
    """
    stored_request, detached = detach_large_parts(request)
    stored_task = _new_task(task_id, context_id, stored_request, tick)
    return Operation(
        script("create_task"),
        keys.task(task_id),
        [
            *(task_id, context_id, str(scope), keys.scope_index(scope), keys.context_index(scope, context_id)),
            *(scope.agent, retention, keys.leases, keys.dispatch, FIRST_PUBLISH_GRACE_US),
            *(encode_request(stored_request, detached), caller, encode(stored_task, detached)),
            *(encode(status_event(task_id, context_id, SUBMITTED)), encode(stored_request.message, detached)),
            *(encode(status_event(task_id, context_id, WORKING)), options),
            *_idempotency_arguments(keys, scope, idempotency_key),
            *(_queue_of_runs(keys, scope, context_id, serialize_context, tick), limit_argument(keys, scope, limits)),
            *(("", 0) if reply_channel is None else (reply_channel.channel, int(reply_channel.final_only))),
            *(NO_TICK if tick is None else tick_arguments(keys, tick)),
            *(NO_PARENT if parent is None else parent_arguments(parent, task_id, context_id)),
            *(*_message_arguments(message), *config_arguments(keys, push)),
        ],
        partial(_created_or_not, stored_task, request.message if detached else None, parent),
        has_detached_parts=bool(detached),
    )


def _new_task(task_id: str, context_id: str, request: SendMessageRequest, tick: Tick | None) -> Task:
    status, metadata = TaskStatus(state=SUBMITTED), None if tick is None else tick.metadata()
    return Task(id=task_id, context_id=context_id, status=status, history=[request.message], metadata=metadata)


def _queue_of_runs(keys: Keys, scope: Scope, context_id: str, serialize_context: bool, tick: Tick | None) -> str:
    """Return the queue that serializes the runs of a task, or "" if its runs are not serialized."""
    if serialize_context:
        return keys.context_queue(scope, context_id)
    return keys.schedule_queue(tick.schedule) if tick is not None and tick.overlap != "skip" else ""


def _created_or_not(
    task: Task, whole_message: Message | None, parent: Parent | None, reply: Sequence[bytes]
) -> Created | NotCreated:
    """Parse the reply of ``create_task``. `whole_message` replaces the message of `task`, unless it is None."""
    require_blobs_retained(reply)
    if reply[0] != b"created":
        return not_created(reply)
    _, at, is_blocked, is_child, is_published, context_id = reply
    task.context_id = context_id.decode()
    if whole_message is not None:
        task.history[0].CopyFrom(whole_message)
    task.status.timestamp.CopyFrom(timestamp(int(at)))
    if is_child == b"1" and parent is not None:
        task.metadata.MergeFrom(parent.metadata())
    return Created(task, EventId(1, int(at)), is_blocked == b"1", is_published == b"1")


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
    answered_run: int | None = None,
    on_message: str = "queue",
    broker_message: BrokerMessage | None = None,
) -> Operation[Continued]:
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
        idempotency_key: Key that detects a repeated message of the client, or None.
        push: Push-notification config to save, which receives the following events, or None.
        limits: Limits for the message, or None for no limits.
        max_bytes: Maximum size of the task including the message, in bytes, or None for no limit.
        answered_run: Number of the run whose question the message answers, or None. The answer is validated.
        on_message: ``Agent.on_message``.
        broker_message: Celery message of the run that the message begins, or None if the caller publishes the run.
    """
    stored_request, detached = detach_large_parts(request)
    message = stored_request.message
    return Operation(
        script("continue_task"),
        keys.task(task_id),
        [
            *(str(scope), context_id, nonce, FIRST_PUBLISH_GRACE_US),
            encode(message, detached),
            encode(status_event(task_id, message.context_id, SUBMITTED)),
            *(encode_request(stored_request, detached), caller, MAX_WAITING_TURNS, options),
            *_idempotency_arguments(keys, scope, idempotency_key),
            encode(Message(metadata={TASK_ENDED_FIRST: True})),
            limit_argument(keys, scope, limits),
            *("" if number is None else number for number in (max_bytes, answered_run)),
            *(on_message, keys.runner("")),
            *_message_arguments(broker_message),
            *config_arguments(keys, push),
        ],
        parse_continuation,
        resolve_blobs=False,  # a message is accepted even if the object store is unavailable
        has_detached_parts=bool(detached),
    )


def read_next_run(keys: Keys, task_id: str) -> Operation[int | None]:
    """Read the number of the run that the next message to a task begins.

    Returns:
        The number, or None if a run is open or the task does not exist.
    """
    return Operation(script("read_next_run"), keys.task(task_id), [], lambda reply: int(reply) if reply else None)


def request_cancel(
    keys: Keys, scope: Scope, task_id: str, context_id: str, *, text: str = CANCELED_BY_CLIENT
) -> Operation[Missing | Ended | CanceledNow | CancelRequested]:
    """Cancel a task without a claimed run, or ask the worker to cancel the run.

    If the cancellation of the run was requested before, the worker is notified again, and the earlier `text` is used.

    Args:
        text: Text of the message in the CANCELED status, unless the agent sends its own message.
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

    return Operation(
        script("read_task"),
        keys.task(task_id),
        ["*" if scope is None else str(scope), _length(history_length), int(artifacts), 0],
        parse,
        resolve_blobs,
        lambda reply: 0 if reply is None else snapshot_size(reply),
    )


def unlist_task(keys: Keys, task_id: str) -> Operation[bool]:
    """Remove an ended task from the indexes and from the list of tasks to archive.

    Callers unlist a task if the client has received only the agent's message and does not know the task id.

    Returns:
        False if the task does not exist or has not ended.
    """
    return Operation(script("unlist_task"), keys.task(task_id), [], bool)


def read_final_task(
    keys: Keys, scope: Scope, task_id: str, *, history_length: int | None = None
) -> Operation[FinalTask | None]:
    """Read a terminal or interrupted task.

    Returns:
        The task, or None if the task is in any other state or not in `scope`.
    """
    return Operation(script("read_task"), keys.task(task_id), [str(scope), _length(history_length), 1, 1], final_task)


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
    """Read a page of the tasks of a scope, newest status first.

    Args:
        keys: Keys of the deployment.
        scope: Agent, tenant and owner of the tasks.
        retention: Seconds for which ended tasks are stored.
        page_size: Maximum number of tasks on the page.
        context_id: Id of the tasks' context, or "" for all contexts.
        state: State of the tasks, or None for all states.
        not_before_us: Earliest time of the status in µs since 1970, or None for no limit.
        cursor: Time of the status in µs since 1970, and quoted id, of the last task on the previous page, or None.
        history_length: Number of newest messages of each task, or None for all messages.
        artifacts: True to read the artifacts.
        blob_bytes: Bytes of large parts after which the page ends, or None for no limit.
        max_bytes: Maximum total size of the tasks on a page in bytes, except for a single larger task, or None for no
            limit.
        archived: True if ended tasks are removed from the indexes when they are archived, instead of when they expire.
    """

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
        partial(_page, blob_bytes),
        size=lambda reply: sum(map(snapshot_size, reply[3:])),
    )


def _page(blob_bytes: int | None, reply: Sequence[Any]) -> Page:
    total, more, border, *snapshots = reply
    require_contents(snapshots)
    tasks: list[Task] = []
    for snapshot in snapshots:
        tasks.append(task_from_snapshot(snapshot)[0])
        if blob_bytes is not None and referenced_bytes() > blob_bytes:
            break
    return Page(tasks, int(total), more == b"1" or len(tasks) < len(snapshots), int(border) if border else None)


def _idempotency_arguments(keys: Keys, scope: Scope, key: IdempotencyKey | None) -> list[Argument]:
    return ["", "", 0] if key is None else [keys.message(scope, key.message_id), key.digest, key.window_ms]


def _length(history_length: int | None) -> int:
    return -1 if history_length is None else history_length


def end_pauses(keys: Keys, *, limit: int, latest_us: int | None = None) -> Operation[int]:
    """Fail up to `limit` tasks whose pause has timed out.

    Args:
        keys: Keys of the deployment.
        limit: Maximum number of tasks.
        latest_us: Upper bound for the current time, in µs, which protects against a store clock that has jumped ahead.
            None for no bound.

    Returns:
        The number of due pauses.
    """
    latest = "" if latest_us is None else latest_us
    return Operation(script("end_pauses"), [keys.pauses], [keys.prefix, limit, latest], int)
