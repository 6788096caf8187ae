"""Deliveries of a task's events to a real receiver. The events arrive signed and in order, whatever the receiver
responds."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from itertools import count, product
from typing import Any

import pytest
from a2a.compat.v0_3.types import Task as LegacyTask
from a2a.types import SendMessageRequest, Task
from google.protobuf.json_format import ParseDict

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.webhooks.deliveries import read_delivery
from tests.support.clients import Served, message_json, rpc, sdk_client, serving
from tests.support.posts import (
    DELIVERING,
    SECRET,
    first_posts,
    folded,
    require_all,
    require_signed,
    shown,
    states,
    version_of,
    with_config,
)
from tests.support.receiver import (
    BREAK_OFF,
    GARBAGE,
    HANG_UP,
    Received,
    Receiver,
    Step,
    huge_body,
    receiver,
    redirect,
    retry_after,
    silent,
)
from tests.support.waiting import eventually

PATHS = (f"/hook/{number}" for number in count())
"""Paths of the webhooks. Each webhook uses a new path."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("fleet")
    with serving(folder, pool="threads", concurrency=8, grpc=False, **DELIVERING) as served:
        served.fleet.watcher()
        yield served


@pytest.fixture(scope="module")
def store(served: Served) -> Iterator[SyncStore]:
    store = SyncStore(served.fleet.redis.store_url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def path() -> str:
    return next(PATHS)


def sent(served: Served, agent: str, text: str, url: str, **config: Any) -> dict[str, Any]:
    """Send a message with a push-notification config, and return the task."""
    answer = rpc(served.gateway, "SendMessage", with_config(message_json(text), url, **config), agent=agent)
    task: dict[str, Any] = answer["result"]["task"]
    return task


def read(served: Served, agent: str, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = rpc(served.gateway, "GetTask", {"id": task_id}, agent=agent)["result"]
    return task


def all_posts(store: SyncStore, hooks: Receiver, path: str, task_id: str, after: int = 0) -> list[Received]:
    """Wait until the newest event of the task has been posted to `path`. Check all posts and return them."""
    expected = shown(store, task_id)

    def newest_is_there() -> bool:
        return any(version_of(got) == max(expected) for got in hooks.received(path))

    eventually(newest_is_there, what=f"event {max(expected)} comes to {path}")
    posts = hooks.received(path)
    require_signed(posts)
    require_all(posts, expected, after=after)
    return posts


def test_every_event_comes_once_signed_and_in_order(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    authentication = {"scheme": "Bearer", "credentials": "a-credential"}
    task = sent(served, "count", "20", hooks.url(path), authentication=authentication)

    posts = all_posts(store, hooks, path, task["id"])

    assert {got.method for got in posts} == {"POST"}
    assert {got.headers["content-type"] for got in posts} == {"application/a2a+json"}
    assert {got.headers["authorization"] for got in posts} == {"Bearer a-credential"}
    assert not any("x-a2a-notification-token" in got.headers for got in posts)  # the token is the secret
    versions = [version_of(got) for got in posts]
    assert versions == sorted(set(versions))
    assert folded(posts) == ParseDict(read(served, "count", task["id"]), Task())


def test_a_token_that_is_no_secret_is_sent_as_it_is(served: Served, hooks: Receiver, path: str) -> None:
    sent(served, "echo", "hello", hooks.url(path), token="a-token")

    posts = hooks.wait_for(path, 4)

    assert {got.headers["x-a2a-notification-token"] for got in posts} == {"a-token"}
    assert all(got.headers["webhook-signature"].startswith("v1,") for got in posts)


def test_a_conversation_goes_on_at_its_webhook(served: Served, store: SyncStore, hooks: Receiver, path: str) -> None:
    task = sent(served, "interview", "a survey", hooks.url(path))
    for answer in ("Ada", "London", "blue"):
        rpc(served.gateway, "SendMessage", message_json(answer, taskId=task["id"]), agent="interview")

    posts = all_posts(store, hooks, path, task["id"])

    turn = ["SUBMITTED", "WORKING", "INPUT_REQUIRED"]
    assert states(posts) == [*turn * 3, "SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    received, known = folded(posts), ParseDict(read(served, "interview", task["id"]), Task())
    assert (received.status, received.artifacts) == (known.status, known.artifacts)


@pytest.mark.parametrize(
    ("steps", "posts_of_it"),
    [
        ([500], 2),
        ([404, 503], 3),
        ([HANG_UP], 2),
        ([GARBAGE], 2),
        ([huge_body(500)], 2),
        ([huge_body()], 1),  # the status confirms the delivery
        ([BREAK_OFF], 1),
    ],
    ids=["500", "404-503", "hang-up", "garbage", "huge-500", "huge-200", "break-off-200"],
)
def test_what_was_not_taken_comes_again_before_anything_else(
    served: Served, store: SyncStore, hooks: Receiver, path: str, steps: list[Step], posts_of_it: int
) -> None:
    hooks.plan(path, [200, *steps])

    task = sent(served, "count", "3", hooks.url(path))
    first, *rest = [version_of(got) for got in all_posts(store, hooks, path, task["id"])]

    _, second, *others = sorted(shown(store, task["id"]))
    assert [first, *rest] == [1, *[second] * posts_of_it, *others]


def test_a_receiver_is_left_alone_as_long_as_it_asks(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [retry_after(2), retry_after(1, 503)])

    task = sent(served, "echo", "hello", hooks.url(path))
    first, second, third, *_ = all_posts(store, hooks, path, task["id"])

    assert len({got.headers["webhook-id"] for got in (first, second, third)}) == 1
    assert second.at - first.at >= 2
    assert third.at - second.at >= 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(served: Served, store: SyncStore, hooks: Receiver, path: str, status: int) -> None:
    elsewhere = next(PATHS)
    hooks.plan(path, [redirect(hooks.url(elsewhere), status)])

    task = sent(served, "echo", "hello", hooks.url(path))
    posts = all_posts(store, hooks, path, task["id"])

    assert len(posts) == 1 + len(first_posts(posts))
    assert hooks.received(elsewhere) == []


def delivery_state(store: SyncStore, task_id: str, config_id: str) -> str:
    """Return the state of the delivery, or "missing" if the delivery does not exist."""
    found = store.run(read_delivery(Keys("a2a"), task_id, config_id))
    return found.state if found else "missing"


def deliveries(served: Served, *arguments: str) -> list[dict[str, Any]]:
    """Return the JSON output of ``a2a deliveries``."""
    found = served.fleet.command("a2a", "deliveries", *arguments)
    assert found.returncode == 0, found.stderr
    if arguments[0] == "show" and "--json" not in arguments:
        return [json.loads(found.stdout)]
    return list(map(json.loads, found.stdout.splitlines()))


def test_a_410_response_abandons_the_delivery_until_a_replay(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [200, 410])
    task = sent(served, "count", "5", hooks.url(path), id="gone")
    hooks.wait_for(path, 2)

    def given_up() -> list[dict[str, Any]]:
        return [row for row in deliveries(served, "list", "--dead", "--json") if row["task"] == task["id"]]

    [row] = eventually(given_up, what="it is listed")
    assert (row["webhook"], row["state"], row["delivered"], row["status"]) == ("gone", "dead", 1, 410)
    [row] = deliveries(served, "show", task["id"], "gone")
    assert (row["state"], row["lastEvent"]) == ("dead", max(shown(store, task["id"])))
    assert [(attempt["outcome"], attempt["status"]) for attempt in row["attempts"]] == [
        ("gone", 410),
        ("delivered", 200),
    ]
    assert len(hooks.received(path)) == 2
    assert deliveries(served, "show", task["id"], "gone", "--json") == [row]
    assert [r for r in deliveries(served, "--json") if r["task"] == task["id"]] == given_up()

    replayed = deliveries(served, "replay", task["id"], "gone", "--json")

    assert replayed == [{"task": task["id"], "webhook": "gone", "replayed": True}]
    again = served.fleet.command("a2a", "deliveries", "replay", task["id"], "gone")
    assert "was not given up, or is already due again" in again.stdout
    posts = all_posts(store, hooks, path, task["id"])
    assert [version_of(got) for got in posts] == [1, 2, *sorted(shown(store, task["id"]))[1:]]
    eventually(lambda: delivery_state(store, task["id"], "gone") == "delivered")


def create_config(served: Served, agent: str, task_id: str, url: str, config_id: str) -> None:
    """Create a config in a separate request."""
    params = {"taskId": task_id, "url": url, "id": config_id, "token": SECRET}
    answer = rpc(served.gateway, "CreateTaskPushNotificationConfig", params, agent=agent)
    assert "result" in answer, answer


def test_a_config_gets_what_comes_after_it_and_nothing_when_it_is_deleted(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    early, late = path, next(PATHS)
    task = sent(served, "ask", "begin", hooks.url(early), id="early")
    after = max(shown(store, task["id"]))
    create_config(served, "ask", task["id"], hooks.url(late), "late")

    rpc(served.gateway, "SendMessage", message_json("what?", taskId=task["id"]), agent="ask")

    all_posts(store, hooks, early, task["id"])
    all_posts(store, hooks, late, task["id"], after=after)
    known = len(hooks.received(early))
    rpc(served.gateway, "DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "early"}, agent="ask")
    rpc(served.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")
    all_posts(store, hooks, late, task["id"], after=after)
    assert len(hooks.received(early)) == known


def test_a_config_that_is_deleted_while_it_backs_off_gets_nothing_more(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    failing, fine = path, next(PATHS)
    hooks.plan(failing, [retry_after(6)])
    task = sent(served, "ask", "begin", hooks.url(failing), id="failing")
    create_config(served, "ask", task["id"], hooks.url(fine), "fine")
    [first] = hooks.wait_for(failing)

    rpc(served.gateway, "DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "failing"}, agent="ask")

    assert delivery_state(store, task["id"], "failing") == "missing"
    hooks.plan(fine, [retry_after(9)])  # at the retry of this post, the retry of the other is long overdue
    rpc(served.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")
    again = eventually(lambda: hooks.received(fine)[1:2])
    assert again[0].at > first.at + 8
    assert hooks.received(failing) == [first]


def test_a_webhook_that_fails_holds_up_no_other_of_its_task(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    failing, fine = path, next(PATHS)
    hooks.plan(failing, [], then=500)
    task = sent(served, "ask", "begin", hooks.url(failing), id="failing")
    create_config(served, "ask", task["id"], hooks.url(fine), "fine")
    after = max(shown(store, task["id"]))
    hooks.wait_for(failing)

    rpc(served.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")

    all_posts(store, hooks, fine, task["id"], after=after)
    assert {version_of(got) for got in hooks.received(failing)} == {1}
    hooks.plan(failing, [])
    all_posts(store, hooks, failing, task["id"])


WANTED = {
    "terminal": {"COMPLETED", "INPUT_REQUIRED"},
    "artifacts": {"artifact"},
    "status": {"SUBMITTED", "WORKING", "INPUT_REQUIRED", "COMPLETED"},
    "Terminal, artifacts": {"COMPLETED", "INPUT_REQUIRED", "artifact"},
}


@pytest.mark.parametrize("wanted", WANTED)
def test_only_what_is_wanted_comes(served: Served, store: SyncStore, hooks: Receiver, path: str, wanted: str) -> None:
    body = with_config(message_json("hello"), hooks.url(path), id="some")
    task = rpc(served.gateway, "SendMessage", body, agent="ask", A2A_Push_Events=wanted)["result"]["task"]
    rpc(served.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")

    eventually(lambda: delivery_state(store, task["id"], "some") == "delivered", what="nothing is due")

    everything = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    assert states(hooks.received(path)) == [kind for kind in everything if kind in WANTED[wanted]]


def test_hosts_that_do_not_answer_hold_up_no_other(
    served: Served, store: SyncStore, hooks: Receiver, path: str
) -> None:
    with receiver() as mute, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # does not listen
        closed_url = f"http://127.0.0.1:{deaf.getsockname()[1]}/hook"
        mute.plan("/hook", [], then=silent())
        tasks = [sent(served, "ask", "begin", hooks.url(f"{path}/{number}"))["id"] for number in range(10)]
        for task_id, number in product(tasks, range(4)):
            create_config(served, "ask", task_id, mute.url(), f"mute-{number}")
            create_config(served, "ask", task_id, closed_url, f"nobody-{number}")
        for task_id in tasks:
            rpc(served.gateway, "SendMessage", message_json("7", taskId=task_id), agent="ask")

        for number, task_id in enumerate(tasks):
            all_posts(store, hooks, f"{path}/{number}", task_id)

        dead = [delivery_state(store, t, f"{who}-{n}") for t in tasks for who in ("mute", "nobody") for n in range(4)]
        assert set(dead) <= {"waiting", "failing"}
        assert mute.wait_for("/hook")


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_client_of_0_3_gets_the_task_as_0_3_has_it(
    served: Served, store: SyncStore, hooks: Receiver, path: str, binding: str
) -> None:
    body = ParseDict(with_config(message_json("3"), hooks.url(path)), SendMessageRequest())
    async with sdk_client(served.gateway, "count", binding, version="0.3", streaming=False) as client:
        async for answer in client.send_message(body):
            task_id = answer.task.id

    def ended() -> list[Received]:
        posts = hooks.received(path)
        return posts if posts and posts[-1].json()["status"]["state"] == "completed" else []

    posts = eventually(ended, what="the task is posted at its end")
    require_signed(posts)
    tasks = [LegacyTask.model_validate(got.json()) for got in posts]
    assert {task.id for task in tasks} == {task_id}
    assert {got.json()["kind"] for got in posts} == {"task"}
    parts = tasks[-1].artifacts[0].parts if tasks[-1].artifacts else []
    assert "".join(part.root.text for part in parts if part.root.kind == "text") == "0 1 2 "
