"""Serializers. Gateways and watchers start only if the app's own workers can read their messages."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from a2a_celery import A2A
from a2a_celery.errors import ConfigError


def app_of(**conf: Any) -> tuple[Celery, A2A]:
    app = Celery(set_as_current=False)
    app.conf.update(a2a_store_url="redis://127.0.0.1:1", **conf)
    return app, A2A(app)


def exposing(app: Celery, a2a: A2A, **options: Any) -> None:
    @app.task(name="resize", shared=False, **options)
    def resize(width: int) -> int:
        return width

    a2a.expose(resize)


def refusal_of(a2a: A2A) -> str:
    """Return the error with which both the gateway and the watcher refuse to start."""
    texts = []
    for start in (a2a.asgi, a2a.watcher):
        with pytest.raises(ConfigError) as exc_info:
            start()
        texts.append(str(exc_info.value))
    assert len(set(texts)) == 1
    return texts[0]


def test_a_serializer_that_workers_read_is_accepted() -> None:
    for conf, options in (
        ({}, {}),
        ({"accept_content": ["application/json"]}, {}),
        ({"task_serializer": "pickle", "accept_content": ["pickle", "json"]}, {}),
        ({"accept_content": ["json", "pickle"]}, {"serializer": "pickle"}),
    ):
        app, a2a = app_of(**conf)
        exposing(app, a2a, **options)

        a2a.asgi()
        a2a.watcher()


def test_a_task_that_was_exposed_before_its_app_was_configured_is_named() -> None:
    app, a2a = app_of()
    exposing(app, a2a)
    app.conf.update(task_serializer="pickle", accept_content=["pickle"])

    error = refusal_of(a2a)

    assert "task resize" in error
    assert "'json'" in error
    assert "before its tasks are exposed" in error


def test_a_serializer_that_the_app_itself_refuses_is_named() -> None:
    app, a2a = app_of(accept_content=["pickle"])
    exposing(app, a2a, serializer="pickle")

    assert "task_serializer is 'json', and workers accept pickle only" in refusal_of(a2a)


def test_signing_without_a_setup_is_refused() -> None:
    app, a2a = app_of(task_serializer="auth", accept_content=["auth"])
    exposing(app, a2a)

    assert "app.setup_security()" in refusal_of(a2a)
