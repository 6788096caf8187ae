"""Verification of notifications: signatures of an independent library, and each kind of invalid post."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from a2a.types import Artifact, Message, Part, Role, StreamResponse, Task, TaskArtifactUpdateEvent
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from a2a_celery.client.receiver import (
    MalformedNotification,
    NotAuthentic,
    NotificationRefused,
    NotificationTooLarge,
    TimestampOutOfRange,
    Verifier,
)
from a2a_celery.errors import ConfigError
from a2a_celery.lifecycle import EventId
from tests.support.clocks import ManualClock
from tests.support.receivers.webhooks import DELIVERY_ID, OLD_SECRET, OTHER_SECRET, SECRET, Post, post, status_event

NOW = 1_800_000_000.0


def verifier(*secrets: str | bytes, **options: object) -> Verifier:
    """Return a verifier whose clock always shows `NOW`."""
    return Verifier(secrets or (SECRET,), clock=ManualClock(NOW), **options)  # type: ignore[arg-type]


def refusal_text(check: Verifier, signed_post: Post) -> str:
    """Return the class and the text of the exception for a rejected post."""
    with pytest.raises(NotificationRefused) as refusal:
        check.verify(signed_post.headers, signed_post.body)
    return f"{type(refusal.value).__name__}: {refusal.value}"


EVENTS = [
    StreamResponse(task=Task(id="t1", context_id="c1")),
    StreamResponse(message=Message(message_id="m1", task_id="t1", role=Role.ROLE_AGENT, parts=[Part(text="so")])),
    status_event("t1"),
    StreamResponse(
        artifact_update=TaskArtifactUpdateEvent(
            task_id="t1", artifact=Artifact(artifact_id="a", parts=[Part(text="öé\u2028𝄞")]), last_chunk=True
        )
    ),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: event.WhichOneof("payload"))
def test_each_kind_of_event_arrives_as_it_was_sent(event: StreamResponse) -> None:
    signed_post = post(7, event=event, at=NOW - 3)

    notification = verifier().verify(signed_post.headers, signed_post.body)

    assert (notification.id, notification.subscription_id, notification.version, notification.timestamp) == (
        f"{DELIVERY_ID}_7",
        DELIVERY_ID,
        7,
        int(NOW) - 3,
    )
    assert notification.event == getattr(event, event.WhichOneof("payload"))
    assert notification.task_id == "t1"


def test_a_message_of_no_task_has_no_task_id() -> None:
    signed_post = post(event=StreamResponse(message=Message(message_id="m1")), at=NOW)

    assert verifier().verify(signed_post.headers, signed_post.body).task_id == ""


def test_fields_of_a_later_version_of_a2a_are_ignored() -> None:
    signed_post = post(body='{"statusUpdate": {"taskId": "t1", "mood": "fine"}, "also": 1}', at=NOW)

    assert verifier().verify(signed_post.headers, signed_post.body).task_id == "t1"


def test_headers_are_found_however_they_are_written() -> None:
    signed_post = post(at=NOW)

    for headers in (Headers(signed_post.headers), {name.title(): value for name, value in signed_post.headers.items()}):
        assert verifier().verify(headers, signed_post.body).version == 1


@pytest.mark.parametrize(
    ("known_secrets", "signed_with"),
    [
        ([SECRET], [OLD_SECRET, SECRET]),
        ([SECRET, OLD_SECRET], [SECRET]),
        ([SECRET, OLD_SECRET], [OLD_SECRET]),
        ([OLD_SECRET, SECRET], [OTHER_SECRET, SECRET]),
    ],
    ids=["the sender changes it", "changed here", "not changed there yet", "each knows one that the other doesn't"],
)
def test_secrets_change_without_a_notification_lost(known_secrets: list[str], signed_with: list[str]) -> None:
    signed_post = post(secrets=tuple(signed_with), at=NOW)

    assert verifier(*known_secrets).verify(signed_post.headers, signed_post.body).version == 1


def test_signatures_of_other_schemes_are_passed_over() -> None:
    signed_post = post(at=NOW)
    good = signed_post.headers["webhook-signature"]

    for signatures in (f"v1a,AAAA {good}", f"{good} v9 , v1", f"v1,not-base64! {good}"):
        signed_post.headers["webhook-signature"] = signatures
        assert verifier().verify(signed_post.headers, signed_post.body).version == 1

    signed_post.headers["webhook-signature"] = good.replace("v1,", "v1a,")
    assert (
        refusal_text(verifier(), signed_post)
        == "NotAuthentic: The header webhook-signature has no signature of the scheme v1."
    )


def test_a_key_may_have_padding_or_not() -> None:
    signed_post = post(at=NOW)

    for secret in (base64.b64decode(SECRET.removeprefix("whsec_")), SECRET.rstrip("=")):
        assert verifier(secret).verify(signed_post.headers, signed_post.body).version == 1


@pytest.mark.parametrize(
    ("secrets", "reason"),
    [
        ([], "at least one secret"),
        (SECRET, "a list"),
        ([SECRET, "whsec_"], "secret 2 is empty"),
        ([b""], "secret 1 is empty"),
        (["hunter2hunter2"], "secret 1: a string must begin with whsec_"),
        (["whsec_hunter2-not-base64"], "not base64"),
        (["whsec_hunter2é"], "not base64"),
    ],
)
def test_a_secret_that_is_none_is_refused_at_start_and_not_repeated(secrets: list[str | bytes], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        Verifier(secrets)

    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None


def changed_post(field: str, value: str) -> Post:
    """Return a valid post with one changed header."""
    signed_post = post(at=NOW)
    return Post({**signed_post.headers, field: value}, signed_post.body)


@pytest.mark.parametrize(
    "signed_post",
    [
        changed_post("webhook-id", f"{DELIVERY_ID}_2"),
        changed_post("webhook-timestamp", str(int(NOW) - 1)),
        Post(post(at=NOW).headers, post(at=NOW).body + b" "),
        post(secrets=(OTHER_SECRET,), at=NOW),
        changed_post("webhook-signature", "v1,"),
        changed_post("webhook-signature", "v1,\udc80\ud800"),
    ],
    ids=["id", "timestamp", "body", "another's secret", "empty", "no text"],
)
def test_a_changed_or_foreign_notification_is_not_authentic(signed_post: Post) -> None:
    error = refusal_text(verifier(), signed_post)

    assert error == "NotAuthentic: No signature of this id, time and body was made with a known secret."


@pytest.mark.parametrize(
    ("at", "reason"),
    [
        (NOW - 301, "TimestampOutOfRange: Signed 301 s ago; 300 s are allowed: check both clocks."),
        (NOW + 301, "TimestampOutOfRange: Signed 301 s in the future; 300 s are allowed: check both clocks."),
    ],
)
def test_a_signature_from_long_ago_or_the_future_is_refused(at: float, reason: str) -> None:
    assert refusal_text(verifier(), post(at=at)) == reason
    assert verifier(tolerance=400).verify(post(at=at).headers, post(at=at).body).version == 1


@pytest.mark.parametrize("at", [NOW - 300, NOW + 300])
def test_the_edge_of_the_tolerance_is_inside(at: float) -> None:
    assert verifier().verify(post(at=at).headers, post(at=at).body).timestamp == at


@pytest.mark.parametrize("header", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_is_named(header: str) -> None:
    signed_post = post(at=NOW)
    del signed_post.headers[header]

    assert refusal_text(verifier(), signed_post) == f"MalformedNotification: The header {header} is missing."


@pytest.mark.parametrize(
    "identity",
    ["x", "x_", "_1", "x_0", "x_01", "x_-1", "x_1-", "x_1-x", "x_1.5", "x_٣", f"x_{10**15}", "x.y_1", "x_1\n", "a{b_1"],
)
def test_an_id_has_a_line_and_a_version(identity: str) -> None:
    text = refusal_text(verifier(), changed_post("webhook-id", identity))
    assert text.startswith("MalformedNotification: The header webhook-id")


def test_the_version_of_an_id_is_what_follows_its_last_underscore() -> None:
    signed_post = post(12, delivery_id="base64_url-digest_3", at=NOW)

    notification = verifier().verify(signed_post.headers, signed_post.body)

    assert (notification.subscription_id, notification.version, notification.recorded_us) == (
        "base64_url-digest_3",
        12,
        0,
    )


def test_an_id_has_the_time_of_its_event() -> None:
    signed_post = post(12, recorded_us=1_795_367_902_192_814, at=NOW)

    notification = verifier().verify(signed_post.headers, signed_post.body)

    assert (notification.id, notification.subscription_id) == (f"{DELIVERY_ID}_12-1795367902192814", DELIVERY_ID)
    assert notification.event_id == EventId(12, 1_795_367_902_192_814)


@pytest.mark.parametrize("timestamp", ["now", "1.5", "1e9", "-1", "+1", " 1", "٣", "nan", "9" * 13])
def test_a_timestamp_is_whole_seconds(timestamp: str) -> None:
    error = refusal_text(verifier(), changed_post("webhook-timestamp", timestamp))

    assert error == "MalformedNotification: The header webhook-timestamp is not a whole number of seconds since 1970."


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "is not the JSON"),
        ("[]", "has none of"),
        ("1", "is not the JSON"),
        ("{", "is not the JSON"),
        ('{"task": 1}', "is not the JSON"),
        ("[" * 100_000, "is not the JSON"),
        ('{"task": {"id": "t1"}, "message": {"messageId": "m"}}', "is not the JSON"),
        ("{}", "has none of task, message, statusUpdate and artifactUpdate"),
        ('{"kind": "status-update", "taskId": "t1"}', "has none of"),
    ],
)
def test_a_body_that_is_no_event_is_refused(body: str, reason: str) -> None:
    assert reason in refusal_text(verifier(), post(body=body, at=NOW))


def test_a_body_that_is_no_text_is_refused() -> None:
    body, identity, key = b"\xff\xfe", f"{DELIVERY_ID}_1", b"k" * 24
    mac = hmac.new(key, f"{identity}.{int(NOW)}.".encode() + body, hashlib.sha256)  # the library signs text only
    signature = f"v1,{base64.b64encode(mac.digest()).decode()}"
    headers = {"webhook-id": identity, "webhook-timestamp": str(int(NOW)), "webhook-signature": signature}

    assert refusal_text(verifier(key), Post(headers, body)).startswith(
        "MalformedNotification: The body is not the JSON"
    )


def test_a_large_body_is_refused_despite_a_valid_signature() -> None:
    signed_post = post(at=NOW)
    size = len(signed_post.body)

    assert verifier(max_bytes=size).verify(signed_post.headers, signed_post.body).version == 1
    assert refusal_text(verifier(max_bytes=size - 1), signed_post) == (
        f"NotificationTooLarge: A notification may have at most {size - 1} bytes."
    )


@pytest.mark.parametrize(
    ("option", "header", "value"),
    [
        ("token", "X-A2A-Notification-Token", "per-session-token"),
        ("authorization", "Authorization", "Bearer s3cret-token"),
    ],
)
def test_credentials_are_looked_at_when_they_are_known(option: str, header: str, value: str) -> None:
    check = verifier(**{option: value})
    good, other, none = post(at=NOW, **{header: value}), post(at=NOW, **{header: "a guess"}), post(at=NOW)

    assert check.verify(good.headers, good.body).version == 1
    assert verifier().verify(other.headers, other.body).version == 1
    for signed_post in (other, none):
        assert refusal_text(check, signed_post) == f"NotAuthentic: The header {header.lower()} is not the expected one."


def test_every_refusal_has_a_status_and_none_ends_the_subscription() -> None:
    types = (MalformedNotification, NotAuthentic, TimestampOutOfRange, NotificationTooLarge)

    assert {kind.__name__: kind.status for kind in types} == {
        "MalformedNotification": 400,
        "NotAuthentic": 401,
        "TimestampOutOfRange": 401,
        "NotificationTooLarge": 413,
    }
    assert all(issubclass(kind, NotificationRefused) for kind in types)


def spoiled_texts(good: str) -> st.SearchStrategy[str]:
    """Return a strategy for arbitrary texts, the valid text `good`, and texts that end with `good`."""
    texts = st.text(st.characters(codec=None), max_size=40)
    return st.one_of(texts, st.just(good), texts.map(lambda text: good + text))


@given(st.data())
def test_nothing_that_is_posted_raises_anything_else(data: st.DataObject) -> None:
    signed_post = post(at=NOW)
    headers = {name: data.draw(spoiled_texts(value), label=name) for name, value in signed_post.headers.items()}
    body = data.draw(st.one_of(st.just(signed_post.body), st.binary(max_size=40)), label="body")

    try:
        notification = verifier().verify(headers, body)
    except NotificationRefused:
        return
    assert (notification.id, body) == (signed_post.headers["webhook-id"], signed_post.body), (
        "only what was signed comes through"
    )
