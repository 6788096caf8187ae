"""Digest of a message, which is equal for requests for the same work."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.types import AgentCard, SendMessageRequest
from google.protobuf.json_format import ParseDict

from a2a_celery import ConfigError, Settings
from a2a_celery.agents import Agent
from a2a_celery.features.idempotency.section import IdempotencyKey, message_digest
from a2a_celery.lifecycle.references import Scope
from a2a_celery.operations.requests import NewTasks, sections_for_message
from a2a_celery.store import Keys

MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hello"}], "metadata": {"a": 1, "b": {"c": 2}}}


def request(body: dict[str, Any] | None = None, **message: Any) -> SendMessageRequest:
    return ParseDict({"message": MESSAGE | message} | (body or {}), SendMessageRequest())


@pytest.mark.parametrize(
    "equal_request",
    [
        request(),
        request(metadata={"b": {"c": 2}, "a": 1}),
        request({"tenant": "echo/acme"}),
        request({"configuration": {}}),
        request({"configuration": {"returnImmediately": True, "historyLength": 3}}),
    ],
    ids=str,
)
def test_the_same_work_is_the_same_message(equal_request: SendMessageRequest) -> None:
    assert message_digest(equal_request) == message_digest(request())


@pytest.mark.parametrize(
    "other",
    [
        request(parts=[{"text": "hello!"}]),
        request(parts=[{"text": "hello"}, {"text": ""}]),
        request(parts=[{"raw": "aGVsbG8="}]),
        request(metadata={"a": 1, "b": {"c": 3}}),
        request(taskId="t"),
        request(contextId="c"),
        request(referenceTaskIds=["t"]),
        request(extensions=["https://example.com/e"]),
        request({"metadata": {"a": 1}}),
        request({"configuration": {"acceptedOutputModes": ["text/plain"]}}),
        request({"configuration": {"taskPushNotificationConfig": {"url": "https://example.com"}}}),
    ],
    ids=str,
)
def test_other_work_is_another_message(other: SendMessageRequest) -> None:
    assert message_digest(other) != message_digest(request())


def test_the_client_s_message_is_unchanged() -> None:
    client_request = request({"configuration": {"returnImmediately": True}})

    message_digest(client_request)

    assert client_request == request({"configuration": {"returnImmediately": True}})


def test_only_an_agent_with_the_option_recognizes_repeated_messages() -> None:
    def agent(**options: Any) -> Agent:
        return Agent.with_options("a", AgentCard(name="a"), "function", print, None, options)

    keys, scope = Keys("a2a"), Scope("a")
    assert sections_for_message(agent(), keys, scope, request()) == []
    assert sections_for_message(agent(idempotency_window=1.5), keys, scope, request()) == [
        IdempotencyKey.of(keys, scope, "m", message_digest(request()), 1500)
    ]


def test_a_window_may_not_exceed_the_retention_of_the_tasks() -> None:
    options = {"idempotency_window": 61}
    repeatable_agent = Agent.with_options("echo", AgentCard(name="echo"), "function", print, None, options)

    NewTasks(repeatable_agent, Settings(retention=61), Keys("a2a"))
    with pytest.raises(ConfigError, match="idempotency_window = 61: at most a2a_retention, 60 seconds"):
        NewTasks(repeatable_agent, Settings(retention=60), Keys("a2a"))
