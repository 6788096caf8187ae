"""Warnings at the start about results of exposed tasks that no watcher can read."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.dispatch import is_polled

UNREAD = [
    ({"result_backend": None}, "there is no result backend"),
    ({"result_backend": "rpc://"}, "the result backend rpc:// sends a result only to the process"),
    ({"task_ignore_result": True}, "are ignored by ignore_result or task_ignore_result"),
]
READ: list[tuple[dict[str, Any], str]] = [({}, ""), ({"result_backend": "db+sqlite:///results"}, "")]


@pytest.mark.parametrize("process", ["gateway", "watcher"])
@pytest.mark.parametrize(("conf", "warning"), UNREAD + READ)
def test_a_process_warns_at_its_start(
    redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture, conf: dict[str, Any], warning: str, process: str
) -> None:
    app = Celery(broker="memory://", backend="redis://127.0.0.1:1", set_as_current=False)
    app.conf.update({"a2a_store_url": redis_server.store_url, **conf})
    a2a = A2A(app)

    @app.task(name="tasks.resize", shared=False)
    def resize(width: int) -> int:
        return width

    a2a.expose(resize)

    with caplog.at_level(logging.WARNING):
        a2a.asgi() if process == "gateway" else a2a.watcher()

    lines = [record.getMessage() for record in caplog.records if "results of exposed tasks" in record.getMessage()]
    assert [("resize" in line, warning in line) for line in lines] == ([(True, True)] if warning else [])


@pytest.mark.parametrize(
    ("backend", "polled"),
    [
        ("redis://localhost", False),
        ("rediss://localhost", False),
        ("sentinel://localhost", False),
        ("rpc://", False),
        (None, False),
        ("db+sqlite:///results", True),
        ("django-db", True),
        ("cache+memory://", True),
    ],
)
def test_results_are_polled_if_the_backend_does_not_notify_watchers(backend: str | None, polled: bool) -> None:
    app = Celery(set_as_current=False)
    app.conf.result_backend = backend

    assert is_polled(app) == polled
