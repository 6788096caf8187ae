"""Deliveries of a task's events to a real receiver. The events arrive signed and in order, regardless of
the receiver's responses."""

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

from a2a_celery.features.webhooks.deliveries import read_delivery
from a2a_celery.store import Keys, SyncStore
from tests.support.clients.bindings import ServedFleet, message_json, rpc, sdk_client, serve_fleet
from tests.support.receivers.posts import (
    DELIVERING,
    SECRET,
    body_with_config,
    first_posts,
    fold_posts,
    require_all,
    require_signed,
    states,
    version_of,
    visible_events,
)
from tests.support.receivers.receiver import (
    BREAK_OFF,
    GARBAGE,
    HANG_UP,
    ReceivedPost,
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
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    folder = tmp_path_factory.mktemp("fleet")
    with serve_fleet(folder, pool="threads", concurrency=8, grpc=False, **DELIVERING) as served_fleet:
        served_fleet.fleet.watcher()
        yield served_fleet


@pytest.fixture(scope="module")
def store(served_fleet: ServedFleet) -> Iterator[SyncStore]:
    store = SyncStore(served_fleet.fleet.redis.store_url)
    yield store
    store.close()


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def path() -> str:
    return next(PATHS)


def send_with_webhook(served_fleet: ServedFleet, agent: str, text: str, url: str, **config: Any) -> dict[str, Any]:
    """Send a message with a push-notification config, and return the task."""
    answer = rpc(served_fleet.gateway, "SendMessage", body_with_config(message_json(text), url, **config), agent=agent)
    task: dict[str, Any] = answer["result"]["task"]
    return task


def read(served_fleet: ServedFleet, agent: str, task_id: str) -> dict[str, Any]:
    task: dict[str, Any] = rpc(served_fleet.gateway, "GetTask", {"id": task_id}, agent=agent)["result"]
    return task


def all_posts(store: SyncStore, hooks: Receiver, path: str, task_id: str, after_version: int = 0) -> list[ReceivedPost]:
    """Wait until the newest event of the task has been posted to `path`. Check all posts and return them."""
    expected = visible_events(store, task_id)

    def newest_is_there() -> bool:
        return any(version_of(got) == max(expected) for got in hooks.requests(path))

    eventually(newest_is_there, what=f"event {max(expected)} comes to {path}")
    posts = hooks.requests(path)
    require_signed(posts)
    require_all(posts, expected, after_version=after_version)
    return posts


def test_every_event_comes_once_signed_and_in_order(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    authentication = {"scheme": "Bearer", "credentials": "a-credential"}
    task = send_with_webhook(served_fleet, "count", "20", hooks.url(path), authentication=authentication)

    posts = all_posts(store, hooks, path, task["id"])

    assert {got.method for got in posts} == {"POST"}
    assert {got.headers["content-type"] for got in posts} == {"application/a2a+json"}
    assert {got.headers["authorization"] for got in posts} == {"Bearer a-credential"}
    assert not any("x-a2a-notification-token" in got.headers for got in posts)  # the token is the secret
    versions = [version_of(got) for got in posts]
    assert versions == sorted(set(versions))
    assert fold_posts(posts) == ParseDict(read(served_fleet, "count", task["id"]), Task())


def test_a_token_that_is_not_a_secret_is_sent_unchanged(served_fleet: ServedFleet, hooks: Receiver, path: str) -> None:
    send_with_webhook(served_fleet, "echo", "hello", hooks.url(path), token="a-token")

    posts = hooks.wait_for(path, 4)

    assert {got.headers["x-a2a-notification-token"] for got in posts} == {"a-token"}
    assert all(got.headers["webhook-signature"].startswith("v1,") for got in posts)


def test_a_conversation_goes_on_at_its_webhook(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    task = send_with_webhook(served_fleet, "interview", "a survey", hooks.url(path))
    for answer in ("Ada", "London", "blue"):
        rpc(served_fleet.gateway, "SendMessage", message_json(answer, taskId=task["id"]), agent="interview")

    posts = all_posts(store, hooks, path, task["id"])

    turn = ["SUBMITTED", "WORKING", "INPUT_REQUIRED"]
    assert states(posts) == [*turn * 3, "SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    folded_task, stored_task = fold_posts(posts), ParseDict(read(served_fleet, "interview", task["id"]), Task())
    assert (folded_task.status, folded_task.artifacts) == (stored_task.status, stored_task.artifacts)


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
def test_a_failed_event_is_retried_before_later_events(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str, steps: list[Step], posts_of_it: int
) -> None:
    hooks.plan(path, [200, *steps])

    task = send_with_webhook(served_fleet, "count", "3", hooks.url(path))
    first, *rest = [version_of(got) for got in all_posts(store, hooks, path, task["id"])]

    _, second, *others = sorted(visible_events(store, task["id"]))
    assert [first, *rest] == [1, *[second] * posts_of_it, *others]


def test_a_receiver_is_left_alone_as_long_as_it_asks(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [retry_after(2), retry_after(1, 503)])

    task = send_with_webhook(served_fleet, "echo", "hello", hooks.url(path))
    first, second, third, *_ = all_posts(store, hooks, path, task["id"])

    assert len({got.headers["webhook-id"] for got in (first, second, third)}) == 1
    assert second.at - first.at >= 2
    assert third.at - second.at >= 1


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str, status: int
) -> None:
    target_path = next(PATHS)
    hooks.plan(path, [redirect(hooks.url(target_path), status)])

    task = send_with_webhook(served_fleet, "echo", "hello", hooks.url(path))
    posts = all_posts(store, hooks, path, task["id"])

    assert len(posts) == 1 + len(first_posts(posts))
    assert hooks.requests(target_path) == []


def delivery_state(store: SyncStore, task_id: str, config_id: str) -> str:
    """Return the state of the delivery, or "missing" if the delivery does not exist."""
    delivery = store.run(read_delivery(Keys("a2a"), task_id, config_id))
    return delivery.state if delivery else "missing"


def deliveries(served_fleet: ServedFleet, *arguments: str) -> list[dict[str, Any]]:
    """Return the JSON output of ``a2a deliveries``."""
    result = served_fleet.fleet.command("a2a", "deliveries", *arguments)
    assert result.returncode == 0, result.stderr
    if arguments[0] == "show" and "--json" not in arguments:
        return [json.loads(result.stdout)]
    return list(map(json.loads, result.stdout.splitlines()))


def test_a_410_response_abandons_the_delivery_until_a_replay(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [200, 410])
    task = send_with_webhook(served_fleet, "count", "5", hooks.url(path), id="gone")
    hooks.wait_for(path, 2)

    def given_up() -> list[dict[str, Any]]:
        return [row for row in deliveries(served_fleet, "list", "--dead", "--json") if row["task"] == task["id"]]

    [row] = eventually(given_up, what="it is listed")
    assert (row["webhook"], row["state"], row["delivered"], row["status"]) == ("gone", "dead", 1, 410)
    [row] = deliveries(served_fleet, "show", task["id"], "gone")
    assert (row["state"], row["lastEvent"]) == ("dead", max(visible_events(store, task["id"])))
    assert [(attempt["outcome"], attempt["status"]) for attempt in row["attempts"]] == [
        ("gone", 410),
        ("delivered", 200),
    ]
    assert len(hooks.requests(path)) == 2
    assert deliveries(served_fleet, "show", task["id"], "gone", "--json") == [row]
    assert [r for r in deliveries(served_fleet, "--json") if r["task"] == task["id"]] == given_up()

    replay_output = deliveries(served_fleet, "replay", task["id"], "gone", "--json")

    assert replay_output == [{"task": task["id"], "webhook": "gone", "replayed": True}]
    result = served_fleet.fleet.command("a2a", "deliveries", "replay", task["id"], "gone")
    assert "was not given up, or is already due again" in result.stdout
    posts = all_posts(store, hooks, path, task["id"])
    assert [version_of(got) for got in posts] == [1, 2, *sorted(visible_events(store, task["id"]))[1:]]
    eventually(lambda: delivery_state(store, task["id"], "gone") == "delivered")


def create_config(served_fleet: ServedFleet, agent: str, task_id: str, url: str, config_id: str) -> None:
    """Create a config in a separate request."""
    params = {"taskId": task_id, "url": url, "id": config_id, "token": SECRET}
    answer = rpc(served_fleet.gateway, "CreateTaskPushNotificationConfig", params, agent=agent)
    assert "result" in answer, answer


def test_a_config_gets_what_comes_after_it_and_nothing_when_it_is_deleted(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    early_path, late_path = path, next(PATHS)
    task = send_with_webhook(served_fleet, "ask", "begin", hooks.url(early_path), id="early")
    last_version = max(visible_events(store, task["id"]))
    create_config(served_fleet, "ask", task["id"], hooks.url(late_path), "late")

    rpc(served_fleet.gateway, "SendMessage", message_json("what?", taskId=task["id"]), agent="ask")

    all_posts(store, hooks, early_path, task["id"])
    all_posts(store, hooks, late_path, task["id"], after_version=last_version)
    post_count = len(hooks.requests(early_path))
    rpc(served_fleet.gateway, "DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "early"}, agent="ask")
    rpc(served_fleet.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")
    all_posts(store, hooks, late_path, task["id"], after_version=last_version)
    assert len(hooks.requests(early_path)) == post_count


def test_a_config_that_is_deleted_while_it_backs_off_gets_nothing_more(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    failing_path, fine_path = path, next(PATHS)
    hooks.plan(failing_path, [retry_after(6)])
    task = send_with_webhook(served_fleet, "ask", "begin", hooks.url(failing_path), id="failing")
    create_config(served_fleet, "ask", task["id"], hooks.url(fine_path), "fine")
    [first] = hooks.wait_for(failing_path)

    rpc(served_fleet.gateway, "DeleteTaskPushNotificationConfig", {"taskId": task["id"], "id": "failing"}, agent="ask")

    assert delivery_state(store, task["id"], "failing") == "missing"
    hooks.plan(fine_path, [retry_after(9)])  # at the retry of this post, the retry of the other is long overdue
    rpc(served_fleet.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")
    repeated_post = eventually(lambda: hooks.requests(fine_path)[1:2])
    assert repeated_post[0].at > first.at + 8
    assert hooks.requests(failing_path) == [first]


def test_a_webhook_that_fails_holds_up_no_other_of_its_task(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    failing_path, fine_path = path, next(PATHS)
    hooks.plan(failing_path, [], then=500)
    task = send_with_webhook(served_fleet, "ask", "begin", hooks.url(failing_path), id="failing")
    create_config(served_fleet, "ask", task["id"], hooks.url(fine_path), "fine")
    last_version = max(visible_events(store, task["id"]))
    hooks.wait_for(failing_path)

    rpc(served_fleet.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")

    all_posts(store, hooks, fine_path, task["id"], after_version=last_version)
    assert {version_of(got) for got in hooks.requests(failing_path)} == {1}
    hooks.plan(failing_path, [])
    all_posts(store, hooks, failing_path, task["id"])


WANTED = {
    "terminal": {"COMPLETED", "INPUT_REQUIRED"},
    "artifacts": {"artifact"},
    "status": {"SUBMITTED", "WORKING", "INPUT_REQUIRED", "COMPLETED"},
    "Terminal, artifacts": {"COMPLETED", "INPUT_REQUIRED", "artifact"},
}


@pytest.mark.parametrize("wanted_events", WANTED)
def test_only_events_that_match_the_filter_are_posted(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str, wanted_events: str
) -> None:
    body = body_with_config(message_json("hello"), hooks.url(path), id="some")
    task = rpc(served_fleet.gateway, "SendMessage", body, agent="ask", A2A_Push_Events=wanted_events)["result"]["task"]
    rpc(served_fleet.gateway, "SendMessage", message_json("7", taskId=task["id"]), agent="ask")

    eventually(lambda: delivery_state(store, task["id"], "some") == "delivered", what="nothing is due")

    all_events = ["SUBMITTED", "WORKING", "INPUT_REQUIRED", "SUBMITTED", "WORKING", "artifact", "COMPLETED"]
    assert states(hooks.requests(path)) == [kind for kind in all_events if kind in WANTED[wanted_events]]


def test_hosts_that_do_not_answer_hold_up_no_other(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str
) -> None:
    with receiver() as mute, socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))  # does not listen
        closed_url = f"http://127.0.0.1:{deaf.getsockname()[1]}/hook"
        mute.plan("/hook", [], then=silent())
        tasks = [
            send_with_webhook(served_fleet, "ask", "begin", hooks.url(f"{path}/{number}"))["id"] for number in range(10)
        ]
        for task_id, number in product(tasks, range(4)):
            create_config(served_fleet, "ask", task_id, mute.url(), f"mute-{number}")
            create_config(served_fleet, "ask", task_id, closed_url, f"nobody-{number}")
        for task_id in tasks:
            rpc(served_fleet.gateway, "SendMessage", message_json("7", taskId=task_id), agent="ask")

        for number, task_id in enumerate(tasks):
            all_posts(store, hooks, f"{path}/{number}", task_id)

        dead = [delivery_state(store, t, f"{host}-{n}") for t in tasks for host in ("mute", "nobody") for n in range(4)]
        assert set(dead) <= {"waiting", "failing"}
        assert mute.wait_for("/hook")


@pytest.mark.parametrize("binding", ["JSONRPC", "HTTP+JSON"])
async def test_a_client_of_0_3_gets_the_task_as_0_3_has_it(
    served_fleet: ServedFleet, store: SyncStore, hooks: Receiver, path: str, binding: str
) -> None:
    body = ParseDict(body_with_config(message_json("3"), hooks.url(path)), SendMessageRequest())
    async with sdk_client(served_fleet.gateway, "count", binding, version="0.3", streaming=False) as client:
        async for answer in client.send_message(body):
            task_id = answer.task.id

    def posts_at_end() -> list[ReceivedPost]:
        posts = hooks.requests(path)
        return posts if posts and posts[-1].json()["status"]["state"] == "completed" else []

    posts = eventually(posts_at_end, what="the task is posted at its end")
    require_signed(posts)
    tasks = [LegacyTask.model_validate(got.json()) for got in posts]
    assert {task.id for task in tasks} == {task_id}
    assert {got.json()["kind"] for got in posts} == {"task"}
    parts = tasks[-1].artifacts[0].parts if tasks[-1].artifacts else []
    assert "".join(part.root.text for part in parts if part.root.kind == "text") == "0 1 2 "


def test_a_watcher_says_that_webhooks_do_not_use_a_proxy(served_fleet: ServedFleet) -> None:
    watcher = served_fleet.fleet.watcher(HTTPS_PROXY="http://127.0.0.1:9", http_proxy="http://127.0.0.1:9")

    assert "posts to webhooks do not use HTTP_PROXY, HTTPS_PROXY" in watcher.output()
    watcher.stop()
