"""Preloading of agents that are registered by name, when a worker process starts."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.concurrency.prefork import TaskPool as PreforkPool

from a2a_celery import A2A
from a2a_celery.execution.process import preload
from tests.support.agents.basic import card


@pytest.fixture(autouse=True)
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write modules to import, one of which cannot be imported."""
    (tmp_path / "preload_one.py").write_text("class Agent: ...\n")
    (tmp_path / "preload_other_queue.py").write_text("class Agent: ...\n")
    (tmp_path / "preload_broken.py").write_text("raise RuntimeError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "modules", {**sys.modules})


def make_app() -> Celery:
    app = Celery("acme", broker="memory://localhost", set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1/0")
    a2a = A2A(app)
    a2a.add_agent(card("broken"), "preload_broken:Agent")
    a2a.add_agent(card("one"), "preload_one:Agent")
    a2a.add_agent(card("other"), "preload_other_queue:Agent", queue="gpu")
    a2a.worker()
    return app


def test_the_agents_of_the_processs_queues_are_imported(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        thread = preload.preload(make_app())
        assert thread is not None
        thread.join(30)

    assert "preload_one" in sys.modules
    assert "preload_other_queue" not in sys.modules
    assert "agent 'broken' was not imported" in caplog.text


@pytest.mark.parametrize(
    ("pool", "imports"),
    [
        (SimpleNamespace(is_green=False), True),
        (SimpleNamespace(is_green=True), False),
        (object.__new__(PreforkPool), False),
    ],
    ids=["threads", "gevent", "prefork"],
)
def test_a_worker_that_runs_agents_in_its_main_process_imports_them_there(
    monkeypatch: pytest.MonkeyPatch, pool: Any, imports: bool
) -> None:
    starts: list[Celery] = []
    monkeypatch.setattr(preload, "preload", lambda app, then: starts.append(app))
    monkeypatch.setattr(preload, "freeze_heap", lambda: None)
    app = Celery("acme", set_as_current=False)

    preload.worker_is_ready(SimpleNamespace(pool=pool, app=app))
    preload.child_starts()

    assert starts == ([app] if imports else [])
