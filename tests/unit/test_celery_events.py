"""Celery events of executions. A worker sends them if it sends task events, whatever the client's message contains."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from a2a_celery.execution.celery.celery_events import EVENTS_ON, EventSender, mark_events_enabled


def dispatcher(is_enabled: bool = True, groups: tuple[str, ...] = ()) -> SimpleNamespace:
    """Return a stand-in for a worker's event dispatcher. No groups means all groups."""
    return SimpleNamespace(enabled=is_enabled, groups=set(groups))


@pytest.mark.parametrize(
    ("events", "task_sends", "is_marked"),
    [
        (dispatcher(), True, True),  # worker -E
        (dispatcher(groups=("worker",)), True, False),  # worker without -E
        (dispatcher(groups=("worker", "task")), True, True),  # enable_events
        (dispatcher(is_enabled=False), True, False),  # no event listener
        (dispatcher(), False, False),  # send_events = False
        (None, True, False),
    ],
)
@pytest.mark.parametrize("client_fields", [{}, {EVENTS_ON: True}])
def test_a_run_is_marked_if_its_worker_sends_events(
    events: Any, task_sends: bool, is_marked: bool, client_fields: dict[str, bool]
) -> None:
    request: Any = SimpleNamespace(
        eventer=events, task=SimpleNamespace(send_events=task_sends), request_dict=dict(client_fields)
    )

    mark_events_enabled(request)

    assert request.request_dict == ({EVENTS_ON: True} if is_marked else {})


def test_without_listeners_there_is_no_emitter() -> None:
    task: Any = SimpleNamespace(request=SimpleNamespace())

    assert EventSender().emitter(task) is None
