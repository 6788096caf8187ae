"""When a worker sends events of executions: exactly when it sends those of tasks, and never on a client's word."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from a2a_celery.execution.celery.celery_events import EVENTS_ON, EventSender, mark_events_enabled


def dispatcher(enabled: bool = True, groups: tuple[str, ...] = ()) -> SimpleNamespace:
    """A worker's event dispatcher; no groups are all."""
    return SimpleNamespace(enabled=enabled, groups=set(groups))


@pytest.mark.parametrize(
    ("events", "task_sends", "heard"),
    [
        (dispatcher(), True, True),  # -E
        (dispatcher(groups=("worker",)), True, False),  # without
        (dispatcher(groups=("worker", "task")), True, True),  # enable_events
        (dispatcher(enabled=False), True, False),  # nobody listens
        (dispatcher(), False, False),  # send_events = False
        (None, True, False),
    ],
)
@pytest.mark.parametrize("forged", [{}, {EVENTS_ON: True}])
def test_a_run_is_told_whether_its_worker_sends_events(
    events: Any, task_sends: bool, heard: bool, forged: dict[str, bool]
) -> None:
    request: Any = SimpleNamespace(
        eventer=events, task=SimpleNamespace(send_events=task_sends), request_dict=dict(forged)
    )

    mark_events_enabled(request)

    assert request.request_dict == ({EVENTS_ON: True} if heard else {})


def test_nothing_is_made_where_nobody_listens() -> None:
    task: Any = SimpleNamespace(request=SimpleNamespace())

    assert EventSender().emitter(task) is None
