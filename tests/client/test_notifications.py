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
from tests.support.webhooks import DELIVERY_ID, OLD_SECRET, OTHER_SECRET, SECRET, Post, post, status_event

NOW = 1_800_000_000.0


def verifier(*secrets: str | bytes, **options: object) -> Verifier:
    """Return a verifier whose time is always `NOW`."""
    return Verifier(secrets or (SECRET,), clock=ManualClock(NOW), **options)  # type: ignore[arg-type]


def refused(check: Verifier, sent: Post) -> str:
    """Return the class and the text of the refusal."""
    with pytest.raises(NotificationRefused) as refusal:
        check.verify(sent.headers, sent.body)
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
    sent = post(7, event=event, at=NOW - 3)

    got = verifier().verify(sent.headers, sent.body)

    assert (got.id, got.subscription_id, got.version, got.timestamp) == (
        f"{DELIVERY_ID}_7",
        DELIVERY_ID,
        7,
        int(NOW) - 3,
    )
    assert got.event == getattr(event, event.WhichOneof("payload"))
    assert got.task_id == "t1"


def test_a_message_of_no_task_has_no_task_id() -> None:
    sent = post(event=StreamResponse(message=Message(message_id="m1")), at=NOW)

    assert verifier().verify(sent.headers, sent.body).task_id == ""


def test_what_a_later_version_of_a2a_adds_is_passed_over() -> None:
    sent = post(body='{"statusUpdate": {"taskId": "t1", "mood": "fine"}, "also": 1}', at=NOW)

    assert verifier().verify(sent.headers, sent.body).task_id == "t1"


def test_headers_are_found_however_they_are_written() -> None:
    sent = post(at=NOW)

    for headers in (Headers(sent.headers), {name.title(): value for name, value in sent.headers.items()}):
        assert verifier().verify(headers, sent.body).version == 1


@pytest.mark.parametrize(
    ("known", "signed_with"),
    [
        ([SECRET], [OLD_SECRET, SECRET]),
        ([SECRET, OLD_SECRET], [SECRET]),
        ([SECRET, OLD_SECRET], [OLD_SECRET]),
        ([OLD_SECRET, SECRET], [OTHER_SECRET, SECRET]),
    ],
    ids=["the sender changes it", "changed here", "not changed there yet", "each knows one that the other doesn't"],
)
def test_secrets_change_without_a_notification_lost(known: list[str], signed_with: list[str]) -> None:
    sent = post(secrets=tuple(signed_with), at=NOW)

    assert verifier(*known).verify(sent.headers, sent.body).version == 1


def test_signatures_of_other_schemes_are_passed_over() -> None:
    sent = post(at=NOW)
    good = sent.headers["webhook-signature"]

    for beside in (f"v1a,AAAA {good}", f"{good} v9 , v1", f"v1,not-base64! {good}"):
        sent.headers["webhook-signature"] = beside
        assert verifier().verify(sent.headers, sent.body).version == 1

    sent.headers["webhook-signature"] = good.replace("v1,", "v1a,")
    assert refused(verifier(), sent) == "NotAuthentic: The header webhook-signature has no signature of the scheme v1."


def test_a_key_may_be_given_as_it_is_or_without_padding() -> None:
    sent = post(at=NOW)

    for secret in (base64.b64decode(SECRET.removeprefix("whsec_")), SECRET.rstrip("=")):
        assert verifier(secret).verify(sent.headers, sent.body).version == 1


@pytest.mark.parametrize(
    ("secrets", "why"),
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
def test_a_secret_that_is_none_is_refused_at_start_and_not_repeated(secrets: list[str | bytes], why: str) -> None:
    with pytest.raises(ConfigError, match=why) as error:
        Verifier(secrets)

    assert "hunter2" not in str(error.value)
    assert error.value.__cause__ is None


def changed(field: str, value: str) -> Post:
    """Return a valid post with one changed header."""
    sent = post(at=NOW)
    return Post({**sent.headers, field: value}, sent.body)


@pytest.mark.parametrize(
    "sent",
    [
        changed("webhook-id", f"{DELIVERY_ID}_2"),
        changed("webhook-timestamp", str(int(NOW) - 1)),
        Post(post(at=NOW).headers, post(at=NOW).body + b" "),
        post(secrets=(OTHER_SECRET,), at=NOW),
        changed("webhook-signature", "v1,"),
        changed("webhook-signature", "v1,\udc80\ud800"),
    ],
    ids=["id", "timestamp", "body", "another's secret", "empty", "no text"],
)
def test_what_was_changed_or_signed_by_others_is_not_authentic(sent: Post) -> None:
    error = refused(verifier(), sent)

    assert error == "NotAuthentic: No signature of this id, time and body was made with a known secret."


@pytest.mark.parametrize(
    ("at", "why"),
    [
        (NOW - 301, "TimestampOutOfRange: Signed 301 s ago; 300 s are allowed: check both clocks."),
        (NOW + 301, "TimestampOutOfRange: Signed 301 s in the future; 300 s are allowed: check both clocks."),
    ],
)
def test_what_was_signed_long_ago_or_in_the_future_is_refused(at: float, why: str) -> None:
    assert refused(verifier(), post(at=at)) == why
    assert verifier(tolerance=400).verify(post(at=at).headers, post(at=at).body).version == 1


@pytest.mark.parametrize("at", [NOW - 300, NOW + 300])
def test_the_edge_of_the_tolerance_is_inside(at: float) -> None:
    assert verifier().verify(post(at=at).headers, post(at=at).body).timestamp == at


@pytest.mark.parametrize("missing", ["webhook-id", "webhook-timestamp", "webhook-signature"])
def test_a_header_that_is_missing_is_named(missing: str) -> None:
    sent = post(at=NOW)
    del sent.headers[missing]

    assert refused(verifier(), sent) == f"MalformedNotification: The header {missing} is missing."


@pytest.mark.parametrize(
    "identity",
    ["x", "x_", "_1", "x_0", "x_01", "x_-1", "x_1-", "x_1-x", "x_1.5", "x_٣", f"x_{10**15}", "x.y_1", "x_1\n", "a{b_1"],
)
def test_an_id_has_a_line_and_a_version(identity: str) -> None:
    text = refused(verifier(), changed("webhook-id", identity))
    assert text.startswith("MalformedNotification: The header webhook-id")


def test_the_version_of_an_id_is_what_follows_its_last_underscore() -> None:
    sent = post(12, delivery_id="base64_url-digest_3", at=NOW)

    got = verifier().verify(sent.headers, sent.body)

    assert (got.subscription_id, got.version, got.recorded_us) == ("base64_url-digest_3", 12, 0)


def test_an_id_has_the_time_of_its_event() -> None:
    sent = post(12, recorded_us=1_795_367_902_192_814, at=NOW)

    got = verifier().verify(sent.headers, sent.body)

    assert (got.id, got.subscription_id) == (f"{DELIVERY_ID}_12-1795367902192814", DELIVERY_ID)
    assert got.event_id == EventId(12, 1_795_367_902_192_814)


@pytest.mark.parametrize("timestamp", ["now", "1.5", "1e9", "-1", "+1", " 1", "٣", "nan", "9" * 13])
def test_a_timestamp_is_whole_seconds(timestamp: str) -> None:
    error = refused(verifier(), changed("webhook-timestamp", timestamp))

    assert error == "MalformedNotification: The header webhook-timestamp is not a whole number of seconds since 1970."


@pytest.mark.parametrize(
    ("body", "why"),
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
def test_a_body_that_is_no_event_is_refused(body: str, why: str) -> None:
    assert why in refused(verifier(), post(body=body, at=NOW))


def test_a_body_that_is_no_text_is_refused() -> None:
    body, identity, key = b"\xff\xfe", f"{DELIVERY_ID}_1", b"k" * 24
    mac = hmac.new(key, f"{identity}.{int(NOW)}.".encode() + body, hashlib.sha256)  # the library signs text only
    signature = f"v1,{base64.b64encode(mac.digest()).decode()}"
    headers = {"webhook-id": identity, "webhook-timestamp": str(int(NOW)), "webhook-signature": signature}

    assert refused(verifier(key), Post(headers, body)).startswith("MalformedNotification: The body is not the JSON")


def test_a_large_body_is_refused_whoever_signed_it() -> None:
    sent = post(at=NOW)
    size = len(sent.body)

    assert verifier(max_bytes=size).verify(sent.headers, sent.body).version == 1
    assert refused(verifier(max_bytes=size - 1), sent) == (
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
    for sent in (other, none):
        assert refused(check, sent) == f"NotAuthentic: The header {header.lower()} is not the expected one."


def test_every_refusal_has_a_status_and_none_ends_the_subscription() -> None:
    types = (MalformedNotification, NotAuthentic, TimestampOutOfRange, NotificationTooLarge)

    assert {kind.__name__: kind.status for kind in types} == {
        "MalformedNotification": 400,
        "NotAuthentic": 401,
        "TimestampOutOfRange": 401,
        "NotificationTooLarge": 413,
    }
    assert all(issubclass(kind, NotificationRefused) for kind in types)


def spoiled(good: str) -> st.SearchStrategy[str]:
    """Return a strategy of arbitrary texts, and of texts that are nearly valid."""
    anything = st.text(st.characters(codec=None), max_size=40)
    return st.one_of(anything, st.just(good), anything.map(lambda text: good + text))


@given(st.data())
def test_nothing_that_is_posted_raises_anything_else(data: st.DataObject) -> None:
    sent = post(at=NOW)
    headers = {name: data.draw(spoiled(value), label=name) for name, value in sent.headers.items()}
    body = data.draw(st.one_of(st.just(sent.body), st.binary(max_size=40)), label="body")

    try:
        got = verifier().verify(headers, body)
    except NotificationRefused:
        return
    assert (got.id, body) == (sent.headers["webhook-id"], sent.body), "only what was signed comes through"
