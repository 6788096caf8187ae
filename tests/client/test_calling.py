"""`a2a.call` without workers: arguments of a step, invalid arguments, poll intervals, and authentication of
wake-ups."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from a2a.types import Artifact, Message, Part, Role, Task, TaskState, TaskStatus
from celery import Celery
from celery.backends.base import Backend

from a2a_celery import ConfigError
from a2a_celery.client.calling import CallFailed, CallTask, Remote, Webhook, call_task
from a2a_celery.client.calling.content import error_of, message_of, result_data, to_portable
from a2a_celery.client.calling.progress import (
    POLL_INTERVAL_MAX,
    POLL_INTERVAL_MIN,
    WEBHOOK_POLL_INTERVAL_MAX,
    WEBHOOK_POLL_INTERVAL_MIN,
    CallProgress,
    PollRateLimiter,
)
from a2a_celery.client.calling.worker import WAKEUP_TTL, PendingWakeups
from a2a_celery.client.result import Result
from tests.support.clocks import ManualClock
from tests.support.processes.serving import serve_app
from tests.support.receivers.webhooks import post, status_event

URL = "https://agents.example.com/a"
NOW = 1_000_000.0
LONG_SECRET = "0123456789abcdef0123456789abcdef"
STEP = "f2f2cbd0-8c94-4b3e-9f0e-0d1f8c0e5a11"


@pytest.fixture
def app() -> Iterator[Celery]:
    app = Celery("callers", broker="memory://", backend="cache+memory://", set_as_current=False)
    yield app
    app.close()


@pytest.fixture
def call(app: Celery) -> CallTask:
    return call_task(app, remotes={"research": Remote(URL, bearer="hush"), "plain": URL})


def answer(*texts: str, state: TaskState = TaskState.TASK_STATE_COMPLETED) -> dict[str, Any]:
    """Return the data of a result whose artifact has a part for each of `texts`."""
    artifact = Artifact(artifact_id="a", parts=[Part(text=text) for text in texts])
    return result_data(Result(Task(id="t", context_id="c", status=TaskStatus(state=state), artifacts=[artifact])))


class TestSteps:
    def test_the_url_goes_by_name_so_a_chain_can_put_its_result_first(self, call: CallTask) -> None:
        step = call.s("research", "Read this:", timeout=5)

        assert (step.task, step.args, step.kwargs) == ("a2a.call", ("Read this:",), {"url": "research", "timeout": 5})
        assert call.si(URL, "x").immutable

    def test_a_step_holds_no_credentials(self, call: CallTask) -> None:
        assert "hush" not in json.dumps(call.s("research", "x")) + repr(call.remotes["research"])

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("nobody", "no remote is called 'nobody', and it is not a URL; known: plain, research"),
            ("ftp://x/", "must begin with http:// or https://"),
            ("http://", "name a host"),
            ("http://[", "is not a URL"),
            ("https://ann:secret@x/", "the URL for x has a password: pass the credentials in headers"),
            (5, "a string, not int"),
        ],
    )
    def test_an_agent_that_is_none_is_refused(self, call: CallTask, url: Any, expected: str) -> None:
        with pytest.raises(ConfigError) as error:
            call.s(url, "x")

        assert expected in str(error.value)
        assert "secret" not in str(error.value)

    def test_a_remote_with_a_token_that_no_header_can_contain_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="bearer: must consist of printable ASCII"):
            Remote(URL, bearer="hush\n")

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"timeout": 0}, "timeout=0: must be a number of seconds above 0"),
            ({"unreachable_for": "1"}, "unreachable_for='1': must be"),
            ({"unreachable_for": None}, "unreachable_for=None: must be a number of seconds above 0"),
            ({"on_interrupt": "ask"}, "on_interrupt='ask': must be 'raise' or 'return'"),
            ({"headers": {}}, "a2a.call has no headers; it has context_id, on_interrupt"),
            ({"progress": {}}, "a2a.call has no progress"),
        ],
    )
    def test_an_option_that_is_none_is_refused(self, call: CallTask, options: dict[str, Any], expected: str) -> None:
        with pytest.raises((ValueError, TypeError), match=expected):
            call.s(URL, "x", **options)

    def test_an_optional_option_may_be_none(self, call: CallTask) -> None:
        step = call.s(URL, "x", task_id=None, context_id=None, tenant=None, timeout=None)

        assert step.kwargs["tenant"] is None

    def test_content_that_is_no_json_is_refused(self, call: CallTask) -> None:
        with pytest.raises(TypeError, match="a message cannot carry this object: pass text"):
            call.s(URL, object())

    def test_a_step_without_its_url_by_name_is_refused_where_it_is_published(self, call: CallTask) -> None:
        with pytest.raises(TypeError, match="pass the URL by name"):
            call.apply_async((URL, "x"))

    @pytest.mark.parametrize("previous", [(), ("found",)], ids=["first", "after another"])
    def test_contents_are_sent_in_order_and_before_the_previous_result(
        self, call: CallTask, previous: tuple[str, ...]
    ) -> None:
        step = call.s(URL, "a", "b")

        message = message_of([*previous, *step.args], "m")

        assert [part.text for part in message.parts] == ["a", "b", *previous]

    def test_an_app_has_one(self, app: Celery, call: CallTask) -> None:
        assert call.name == "a2a.call"
        with pytest.raises(ConfigError, match=r"already has the task a2a\.call"):
            call_task(app)

    def test_a_client_without_a_webhook_has_no_receiver(self, call: CallTask) -> None:
        with pytest.raises(ConfigError, match="pass webhook=Webhook"):
            call.receiver()


class TestContent:
    @pytest.mark.parametrize(
        ("contents", "parts"),
        [
            (["hello"], [{"text": "hello"}]),
            ([answer("one ", "text"), "Read:"], [{"text": "Read:"}, {"text": "one text"}]),
            ([[answer("a"), answer("b")]], [{"text": "a"}, {"text": "b"}]),
            ([None, "go"], [{"text": "go"}]),
            ([{"parts": [{"text": "x"}, {"url": "https://x/"}]}], [{"text": "x"}, {"url": "https://x/"}]),
            ([to_portable(Part(raw=b"x"))], [{"raw": "eA=="}]),
            ([to_portable([Part(text="a"), Part(text="b")])], [{"text": "a"}, {"text": "b"}]),
            ([to_portable(Result.from_dict(answer("r")))], [{"text": "r"}]),
            ([{"width": 3}], [{"data": {"width": 3.0}, "mediaType": "application/json"}]),
            ([[1, 2]], [{"data": [1.0, 2.0], "mediaType": "application/json"}]),
        ],
    )
    def test_what_is_sent(self, contents: list[Any], parts: list[dict[str, Any]]) -> None:
        message = message_of(json.loads(json.dumps(contents)), "m-1", "t", "c")

        assert to_portable(message)["parts"] == parts
        assert (message.message_id, message.role, message.task_id, message.context_id) == (
            "m-1",
            Role.ROLE_USER,
            "t",
            "c",
        )

    def test_a_message_keeps_its_own_fields(self) -> None:
        own_message = Message(message_id="mine", context_id="c", reference_task_ids=["r"], parts=[Part(text="x")])

        message = message_of([to_portable(own_message)], "m-1")

        own_message.role = Role.ROLE_USER
        assert message == own_message

    @pytest.mark.parametrize("contents", [[], [None], [{"parts": []}], [[]], [answer()]])
    def test_nothing_is_no_message(self, contents: list[Any]) -> None:
        if contents == [[]]:
            assert message_of(contents, "m").parts[0].HasField("data"), "an empty list is data"
            return
        with pytest.raises(ValueError, match="there is nothing to send"):
            message_of(contents, "m-1")

    def test_a_message_that_is_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match="a dict with parts must be a valid message"):
            message_of([{"parts": [{"text": 5}]}], "m-1")


class TestErrors:
    def test_an_error_survives_json_backends_and_pickle(self, app: Celery) -> None:
        error = error_of(URL, Result.from_dict(answer("no", state=TaskState.TASK_STATE_FAILED)))
        assert isinstance(error, CallFailed)

        backend = Backend(app)
        stored_error = json.loads(json.dumps(backend.prepare_exception(error, serializer="json")))
        for copy in (backend.exception_to_python(stored_error), pickle.loads(pickle.dumps(error))):
            assert isinstance(copy, CallFailed)
            assert copy.result == error.result
            assert str(copy) == str(error)

    def test_an_answer_is_none(self) -> None:
        assert error_of(URL, Result.from_dict(answer("yes"))) is None
        assert error_of(URL, Result(Message(message_id="m"))) is None


class TestPauses:
    @pytest.mark.parametrize(
        ("progress", "delay", "options", "expected"),
        [
            (CallProgress(NOW, "t"), 0, {}, POLL_INTERVAL_MIN),
            (CallProgress(NOW, "t"), 40, {}, 10),
            (CallProgress(NOW, "t"), 10_000, {}, POLL_INTERVAL_MAX),
            (CallProgress(NOW, "t", has_webhook=True), 0, {}, WEBHOOK_POLL_INTERVAL_MIN),
            (CallProgress(NOW, "t", has_webhook=True), 10_000, {}, WEBHOOK_POLL_INTERVAL_MAX),
            (CallProgress(NOW, "t", failing_since=NOW), 1, {}, POLL_INTERVAL_MIN),
            (CallProgress(NOW, "t", has_webhook=True, failing_since=NOW), 20, {}, 10),
        ],
    )
    def test_when_it_looks_again(self, progress: CallProgress, delay: float, options: Any, expected: float) -> None:
        pauses = [progress.pause(NOW + delay, **options) for _ in range(50)]

        assert all(0.8 * expected <= pause <= 1.2 * expected for pause in pauses)
        assert len(set(pauses)) > 1, "those that began together come apart"

    def test_an_answer_ends_a_time_without(self) -> None:
        progress = CallProgress(NOW, "t").missed(NOW + 1).missed(NOW + 2)

        assert progress.failing_since == NOW + 1
        assert CallProgress.read(progress.to_dict(), NOW) == progress
        assert progress.reached("t", has_webhook=False).failing_since is None

    def test_a_step_that_has_no_more_time_looks_when_that_is_so(self) -> None:
        progress = CallProgress(NOW, "t", has_webhook=True)

        assert progress.pause(NOW, timeout=5) == 5, "a webhook that never comes makes nothing late"
        assert progress.pause(NOW + 4, timeout=5) == 1
        assert CallProgress(NOW, "t", failing_since=NOW).pause(NOW + 100, timeout=101) == 1
        assert progress.pause(NOW, timeout=5, at_least=20.0) == 20
        assert progress.pause(NOW, timeout=1000) >= 0.8 * WEBHOOK_POLL_INTERVAL_MIN

    def test_many_steps_look_ten_times_a_second_in_all(self) -> None:
        clock = ManualClock()
        pace = PollRateLimiter(clock)

        assert [round(pace.wait(), 1) for _ in range(200)] == [round(0.1 * n, 1) for n in range(1, 201)]
        clock.advance(60)
        assert round(pace.wait(), 1) == 0.1, "one that comes later finds a free place"
        clock.advance_wall_clock(-3600)
        assert round(pace.wait(), 1) == 0.2, "a wall clock that is set back delays no poll"
        assert CallProgress(NOW, "t").pause(NOW, at_least=20.0) == 20
        assert CallProgress(NOW, "t").pause(NOW, at_least=20.0, visibility=6.0) == 2


def test_a_wakeup_is_returned_once() -> None:
    clock = ManualClock()
    wakeups = PendingWakeups(clock)
    wakeups.add("a")

    assert (wakeups.pop("a"), wakeups.pop("a"), wakeups.pop("b")) == (True, False, False)

    wakeups.add("a")
    clock.advance(WAKEUP_TTL)
    assert not wakeups.pop("a"), "it is too old"


class TestWebhook:
    @pytest.mark.parametrize(
        ("url", "secret", "expected"),
        [
            ("x.example.com", LONG_SECRET, "webhook url 'x.example.com'"),
            ("https://x/?q=1", LONG_SECRET, "a host and a path"),
            ("https://x/", "short", "webhook secret: needs at least 32 characters"),
        ],
    )
    def test_one_that_can_t_be_used_is_refused(self, url: str, secret: str, expected: str) -> None:
        with pytest.raises(ConfigError, match=expected) as error:
            Webhook(url, secret)
        assert "short" not in str(error.value)

    def test_each_step_has_a_separate_address_and_secret(self) -> None:
        hook = Webhook("https://me.example.com/a2a/", LONG_SECRET)
        first, second = hook.config("a/b"), hook.config("c")

        assert first.url == "https://me.example.com/a2a/a%2Fb"
        assert first.token.startswith("whsec_")
        assert first.token != second.token
        assert LONG_SECRET not in repr(hook)

    async def test_only_a_final_event_with_the_secret_of_a_step_wakes_the_step(self, app: Celery) -> None:
        hook, woken_steps = Webhook("https://me.example.com/a2a", LONG_SECRET), []
        app.control.broadcast = lambda command, arguments: woken_steps.append((command, arguments))
        own_token, other_token = hook.config(STEP).token, hook.config("other").token
        end_post, working_post = status_event(state=TaskState.TASK_STATE_COMPLETED), status_event()
        question = status_event(state=TaskState.TASK_STATE_INPUT_REQUIRED)
        token_headers = {"X-A2A-Notification-Token": own_token}

        async with serve_app(hook.app(app)) as url, httpx.AsyncClient() as http:

            async def post_status(signed_post: Any, **headers: str) -> int:
                response = await http.post(
                    f"{url}/a2a/{STEP}", headers={**signed_post.headers, **headers}, content=signed_post.body
                )
                return response.status_code

            assert await post_status(post(event=end_post, secrets=(other_token,))) == 401
            assert await post_status(post(event=end_post, secrets=(own_token,), at=NOW)) == 401, "long ago"
            assert await post_status(post(event=working_post, secrets=(own_token,))) == 204
            assert woken_steps == []
            assert await post_status(post(event=end_post, secrets=(own_token,))) == 204
            assert await post_status(post(event=question, secrets=(other_token,)), **token_headers) == 204
        assert woken_steps == [("a2a_wake", {"celery_id": STEP})] * 2

    async def test_it_consents_to_a_sender_that_asks_first(self, app: Celery) -> None:
        asks = {"WebHook-Request-Origin": "agents.example.com"}
        hook = Webhook("https://me.example.com/a2a", LONG_SECRET)
        async with serve_app(hook.app(app)) as url, httpx.AsyncClient() as http:
            response = await http.options(f"{url}/{STEP}", headers=asks)

        assert response.headers["WebHook-Allowed-Origin"] == "agents.example.com"

    async def test_an_outage_of_the_broker_is_answered_with_a_retry(self, app: Celery) -> None:
        def fail_to_broadcast(*_: Any, **__: Any) -> None:
            raise ConnectionError

        hook = Webhook("https://me.example.com/a2a", LONG_SECRET)
        app.control.broadcast = fail_to_broadcast
        signed_post = post(event=status_event(state=TaskState.TASK_STATE_FAILED), secrets=(hook.config(STEP).token,))

        async with serve_app(hook.app(app)) as url, httpx.AsyncClient() as http:
            response = await http.post(f"{url}/{STEP}", headers=signed_post.headers, content=signed_post.body)

        assert (response.status_code, response.headers["retry-after"]) == (503, "5")
