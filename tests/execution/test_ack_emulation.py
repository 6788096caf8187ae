"""Messages that a worker with disabled acknowledgement emulation records only in memory. They are the runs of its
agents."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A, Turn
from a2a_celery.execution import agent_worker

RUN = "f1b4cb0a-0a8a-4f3e-8f5b-0f4c1f9a3a11.1"


def echo(turn: Turn) -> str:
    return turn.text


def resize(width: int) -> int:
    return width


def predicates(monkeypatch: pytest.MonkeyPatch, **settings: Any) -> list[Callable[[Any], bool]]:
    """Return the functions that a worker with an agent, an exposed task and another task passes to kombu."""
    predicates: list[Callable[[Any], bool]] = []
    monkeypatch.setattr(agent_worker, "guard", lambda app: None)
    monkeypatch.setattr(agent_worker, "skip_run_acks", lambda app, is_run: predicates.append(is_run))
    app = Celery("acme", broker="redis://broker", set_as_current=False)
    app.conf.update(a2a_store_url="redis://store", **settings)
    app.task(name="echo")(echo)
    a2a = A2A(app)
    a2a.agent("echo")(echo)
    a2a.expose(app.task(name="tasks.resize")(resize))
    a2a.worker().guard_broker()
    return predicates


def message(task: str, id: str = RUN, **headers: str) -> Any:
    return SimpleNamespace(headers={"task": task, "id": id, **headers})


def test_only_runs_of_agents_of_this_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    [is_run] = predicates(monkeypatch)

    assert is_run(message("a2a.echo"))
    assert not is_run(message("a2a.echo", a2a_fleet="other")), "which this worker returns to its queue"
    assert not is_run(message("a2a.echo", id="manual")), "which no store knows"
    assert not is_run(message("a2a.unknown"))
    assert not is_run(message("tasks.resize")), "which workers without this package execute, too"
    assert not is_run(message("echo"))
    assert not is_run(SimpleNamespace(headers={})), "a message of Celery's protocol 1"


def test_runs_of_a_fleet_with_another_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    [is_run] = predicates(monkeypatch, a2a_key_prefix="mine")

    assert is_run(message("a2a.echo", a2a_fleet="mine"))
    assert not is_run(message("a2a.echo"))


def test_no_message_with_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    assert predicates(monkeypatch, a2a_ack_emulation=True) == []
