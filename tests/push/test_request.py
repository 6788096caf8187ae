"""Bodies and headers of posts, for subscribers of both protocol versions."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from a2a.compat.v0_3 import types as legacy
from a2a.types import (
    Artifact,
    AuthenticationInfo,
    Message,
    Part,
    Role,
    StreamResponse,
    Task,
    TaskArtifactUpdateEvent,
    TaskPushNotificationConfig,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict, Parse
from google.protobuf.struct_pb2 import Struct
from standardwebhooks import Webhook

from a2a_celery import __version__
from a2a_celery.lifecycle import Event, EventId
from a2a_celery.lifecycle.events import timestamp
from a2a_celery.push import PostRequest, Signer, delivery_id
from a2a_celery.push.request import LARGE_TASK

STATUS = TaskStatus(state=TaskState.TASK_STATE_WORKING, timestamp=timestamp(1_700_000_000_123_000))
MESSAGE = Message(message_id="m", role=Role.ROLE_AGENT, task_id="t", parts=[Part(text="Grüße ✓")])
ARTIFACT = Artifact(artifact_id="a", parts=[Part(raw=b"\x00\xff", media_type="image/png", filename="x.png")])
TASK = Task(id="t", context_id="c", status=STATUS, history=[MESSAGE], artifacts=[ARTIFACT])
EVENTS: dict[str, Event] = {
    "task": TASK,
    "statusUpdate": TaskStatusUpdateEvent(task_id="t", context_id="c", status=STATUS),
    "artifactUpdate": TaskArtifactUpdateEvent(task_id="t", context_id="c", artifact=ARTIFACT, last_chunk=True),
    "message": MESSAGE,
}


def config(scheme: str = "", credentials: str = "", token: str = "") -> TaskPushNotificationConfig:
    auth = AuthenticationInfo(scheme=scheme, credentials=credentials)
    return TaskPushNotificationConfig(
        task_id="t", id="c", url="https://a.example/hook", token=token, authentication=auth if scheme else None
    )


def built(
    event: Event, config: TaskPushNotificationConfig | None = None, protocol: str = "1.0", now_s: float | None = None
) -> PostRequest:
    subscription_config = config or TaskPushNotificationConfig(url="https://a.example/hook")
    signer = Signer.of(subscription_config, [b"key"])
    at = time.time() if now_s is None else now_s
    return PostRequest.build(event, subscription_config, delivery_id="msg_1", now=at, signer=signer, protocol=protocol)


@pytest.mark.parametrize("kind", EVENTS)
def test_an_event_is_a_stream_response(kind: str) -> None:
    request = built(EVENTS[kind])

    payload = Parse(request.body, StreamResponse())
    assert payload.WhichOneof("payload") == {"statusUpdate": "status_update", "artifactUpdate": "artifact_update"}.get(
        kind, kind
    )
    assert json.loads(request.body) == {kind: MessageToDict(EVENTS[kind])}
    assert request.headers["Content-Type"] == "application/a2a+json"
    assert request.url == "https://a.example/hook"


@pytest.mark.parametrize("protocol", ["1.0", "0.3"])
def test_a_large_task_goes_without_its_history(protocol: str) -> None:
    large_task = Task(id="t", context_id="c", status=STATUS, artifacts=[ARTIFACT])
    large_task.history.append(Message(message_id="m", role=Role.ROLE_USER, parts=[Part(text="x" * LARGE_TASK)]))
    small_task = Task()
    small_task.CopyFrom(large_task)
    small_task.history[0].parts[0].text = "x" * (LARGE_TASK - large_task.ByteSize() + LARGE_TASK)
    assert small_task.ByteSize() == LARGE_TASK

    payload = json.loads(built(large_task, protocol=protocol).body)
    body = json.loads(built(small_task, protocol=protocol).body)

    task, whole_task = (payload, body) if protocol == "0.3" else (payload["task"], body["task"])
    assert "history" not in task
    assert len(whole_task.pop("history")) == 1
    assert task == whole_task
    assert len(large_task.history) == 1


def test_a_repetition_by_another_process_is_byte_identical() -> None:
    """Protobuf maps are unordered, so their order may differ between processes."""
    event = TaskStatusUpdateEvent(task_id="t", context_id="c")
    event.metadata.update({f"k{number}": number for number in range(20)})

    payload = json.loads(built(event).body, object_pairs_hook=lambda pairs: pairs)

    def names(pairs: list[tuple[str, Any]]) -> list[list[str]]:
        inner = [names(value) for _, value in pairs if isinstance(value, list)]
        return [[name for name, _ in pairs], *(keys for group in inner for keys in group)]

    assert names(payload) == [sorted(keys) for keys in names(payload)]
    assert max(map(len, names(payload))) == 20


def test_text_is_sent_unchanged() -> None:
    assert "Grüße ✓".encode() in built(MESSAGE).body


def test_the_config_authenticates_the_sender() -> None:
    request = built(TASK, config("Bearer", "cred", "tok"))

    assert request.headers["Authorization"] == "Bearer cred"
    assert request.headers["X-A2A-Notification-Token"] == "tok"
    assert request.headers["User-Agent"] == f"a2a-celery/{__version__}"


@pytest.mark.parametrize("push_config", [config(), config("Bearer", "")])
def test_headers_without_a_value_in_the_config_are_not_sent(push_config: TaskPushNotificationConfig) -> None:
    assert not {"Authorization", "X-A2A-Notification-Token"} & set(built(TASK, push_config).headers)


def test_a_secret_signs_and_is_not_sent() -> None:
    secret = "whsec_" + "QUJD" * 8
    request = built(TASK, config(token=secret))

    assert secret not in " ".join(request.headers.values())
    assert Webhook(secret).verify(request.body, request.headers) == json.loads(request.body)


def test_the_signature_is_of_this_post_and_its_time() -> None:
    request = built(TASK, config(token="tok"), now_s=1_700_000_000.9)

    assert request.headers["webhook-id"] == "msg_1"
    assert request.headers["webhook-timestamp"] == "1700000000"
    assert request.headers["webhook-signature"].startswith("v1,")


def test_a_subscriber_of_0_3_gets_the_task_as_a_whole() -> None:
    request = built(TASK, protocol="0.3")

    task = legacy.Task.model_validate_json(request.body)
    payload = json.loads(request.body)
    assert request.headers["Content-Type"] == "application/json"
    assert (payload["kind"], payload["contextId"], payload["status"]["state"]) == ("task", "c", "working")
    assert payload["artifacts"][0]["parts"][0] == {
        "kind": "file",
        "file": {"bytes": "AP8=", "mimeType": "image/png", "name": "x.png"},
    }
    assert task.history is not None
    assert task.history[0].message_id == "m"
    assert "null" not in request.body.decode()


@pytest.mark.parametrize("kind", [kind for kind in EVENTS if kind != "task"])
def test_0_3_sends_nothing_else(kind: str) -> None:
    with pytest.raises(ValueError, match=r"0\.3"):
        built(EVENTS[kind], protocol="0.3")


def test_0_3_can_say_no_part_without_content() -> None:
    task = Task(id="t", context_id="c", status=STATUS, artifacts=[Artifact(artifact_id="a", parts=[Part()])])

    with pytest.raises(ValueError, match="part"):
        built(task, protocol="0.3")


def test_a_number_that_json_has_not_is_refused() -> None:
    metadata = Struct()
    metadata["n"] = float("nan")

    with pytest.raises(ValueError, match="JSON"):
        built(Task(id="t", context_id="c", status=STATUS, metadata=metadata))


def test_a_request_does_not_show_what_is_secret() -> None:
    text = repr(built(TASK, config("Bearer", "s3cret", "t0ken")))

    assert "s3cret" not in text
    assert "t0ken" not in text


def test_the_secrets_that_a_response_must_not_repeat_are_known() -> None:
    push_config = config("Bearer", "s3cret", "t0ken")
    push_config.url = "https://a.example/hook?key=k3y"

    assert built(TASK, push_config).secrets == ("s3cret", "t0ken", "key=k3y")
    assert built(TASK).secrets == ()


@pytest.mark.parametrize(
    ("path", "secrets"),
    [
        ("", set()),
        ("/", set()),
        ("/hook", set()),
        ("/hook?v=1", set()),
        ("/services/T0/B0/abcdefghijkl", {"/services/T0/B0/abcdefghijkl", "abcdefghijkl"}),
        ("/h?key=abcdefghijkl&v=1", {"key=abcdefghijkl&v=1", "key=abcdefghijkl", "abcdefghijkl"}),
        ("/%41bcdefg", {"/%41bcdefg", "/Abcdefg"}),
    ],
)
def test_a_url_may_be_a_secret_itself(path: str, secrets: set[str]) -> None:
    """A caller who knows a URL's path or query may post there. Short values are no secrets, because such words occur in
    responses."""
    push_config = config()
    push_config.url = f"https://a.example{path}"

    assert set(built(TASK, push_config).secrets) == secrets


def test_the_id_of_a_delivery_is_stable_and_unique() -> None:
    event = EventId(7, 1767225600000000)
    arguments = ("t", "c", event)
    others = [
        *(("t", "c", EventId(8, event.recorded_us)), ("t", "c", EventId(7, event.recorded_us + 1))),
        *(("t", "d", event), ("tc", "", event), ("", "tc", event)),
    ]

    assert delivery_id(*arguments) == delivery_id(*arguments)
    assert delivery_id(*arguments).endswith("_7-1767225600000000")
    assert len({delivery_id(*ids) for ids in (arguments, *others)}) == 6
    Signer().headers(delivery_id("t.1", "ü .\r\n", event), 0, b"")


@pytest.mark.parametrize("protocol", ["1.0", "0.3"])
def test_the_time_of_a_status_has_milliseconds(protocol: str) -> None:
    status = TaskStatus(state=TaskState.TASK_STATE_WORKING, timestamp=timestamp(1_700_000_000_123_456))
    body = json.loads(built(Task(id="t", context_id="c", status=status), protocol=protocol).body)

    task = body if protocol == "0.3" else body["task"]
    assert task["status"]["timestamp"] == "2023-11-14T22:13:20.123Z"
