"""Checks of webhook requests: signatures, events and order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from typing import Any, TypeVar

from a2a.types import StreamResponse, Task, TaskState, TaskStatusUpdateEvent
from google.protobuf.json_format import Parse
from standardwebhooks import Webhook

from a2a_celery.lifecycle import Event, EventId, LogEntry, fold
from a2a_celery.lifecycle.client_events import client_event
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from tests.support.receivers.receiver import ReceivedPost

T = TypeVar("T", bound=Event)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SECRET_KEY = "0123456789abcdef0123456789abcdef"
DELIVERING = {"A2A_SECRET_KEY": SECRET_KEY, "A2A_ALLOW_NETWORKS": "127.0.0.0/8", "A2A_LEASE_TTL": "3"}
"""Settings of a fleet that delivers to webhooks on this machine."""


def body_with_config(body: dict[str, Any], url: str, **config: Any) -> dict[str, Any]:
    """Return a copy of the SendMessage parameters `body` with a push-notification config for `url`. `config` contains
    other fields of the config."""
    configuration = {**body.get("configuration", {})}
    configuration["taskPushNotificationConfig"] = {"url": url, "token": SECRET, **config}
    return {**body, "configuration": configuration}


def version_of(got: ReceivedPost) -> int:
    """Return the version of the delivered event."""
    return EventId.parse(got.headers["webhook-id"].rpartition("_")[2]).version


def event_of(got: ReceivedPost) -> Event:
    """Return the delivered event."""
    response = Parse(got.body, StreamResponse())
    event: Event = getattr(response, response.WhichOneof("payload"))
    return event


def states(posts: Iterable[ReceivedPost]) -> list[str]:
    """Return the delivered states, and "artifact" for artifact updates."""
    events = [event_of(got) for got in posts]
    return [
        TaskState.Name(event.status.state).removeprefix("TASK_STATE_")
        if isinstance(event, Task | TaskStatusUpdateEvent)
        else "artifact"
        for event in events
    ]


def require_signed(posts: Iterable[ReceivedPost], secret: str = SECRET) -> None:
    """Require that an independent library verifies the signature of each post with `secret`."""
    for got in posts:
        Webhook(secret).verify(got.body, got.headers)


def first_posts(posts: Iterable[ReceivedPost]) -> list[ReceivedPost]:
    """Return the first delivery of each event in order of arrival. Fail if two deliveries of an event differ."""
    firsts: dict[str, ReceivedPost] = {}
    for got in posts:
        first = firsts.setdefault(got.headers["webhook-id"], got)
        assert first.body == got.body, f"{got.headers['webhook-id']} came with another body"
    return list(firsts.values())


def fold_posts(posts: Sequence[ReceivedPost]) -> Task:
    """Return the task that results from the events of `posts`, which must be complete."""
    return fold(LogEntry(number, 0, event_of(got)) for number, got in enumerate(posts, start=1))


def visible_events(store: SyncStore, task_id: str) -> dict[int, Event]:
    """Return the events of a task's log that clients receive, by version, with times in milliseconds as in JSON."""
    entries = store.run(read_log(Keys("a2a"), task_id, 0, limit=1_000_000)).entries
    assert isinstance(entries[0].event, Task)
    context_id = entries[0].event.context_id
    events = {entry.version: client_event(entry, task_id, context_id) for entry in entries}
    return {version: in_milliseconds(event) for version, event in events.items() if event is not None}


def in_milliseconds(event: T) -> T:
    """Return a copy of `event` whose status has a time in milliseconds, as in JSON."""
    event_copy = deepcopy(event)
    if isinstance(event_copy, Task | TaskStatusUpdateEvent):
        event_copy.status.timestamp.nanos -= event_copy.status.timestamp.nanos % 1_000_000
    return event_copy


def require_all(posts: Iterable[ReceivedPost], expected: Mapping[int, Event], *, after_version: int = 0) -> None:
    """Require that exactly the events of `expected` with versions above `after_version` were delivered, in order."""
    firsts = first_posts(posts)
    assert [version_of(got) for got in firsts] == [version for version in sorted(expected) if version > after_version]
    for got in firsts:
        assert event_of(got) == expected[version_of(got)], got.headers["webhook-id"]
