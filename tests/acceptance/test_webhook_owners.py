"""Deliveries, replays and pings over HTTP for the owner of a webhook, even after a watcher's restart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.clients.bindings import ServedFleet, message_json, rest, rpc, serve_fleet
from tests.support.processes.fleet import Process
from tests.support.receivers.posts import DELIVERING, body_with_config, require_signed, version_of
from tests.support.receivers.receiver import HANG_UP, ReceivedPost, Receiver, receiver, silent
from tests.support.waiting import eventually

PATHS = (f"/hook/{number}" for number in count())
"""Paths of the webhooks. Each webhook uses a new path."""


@pytest.fixture(scope="module")
def served_fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    with serve_fleet(
        tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, grpc=False, **DELIVERING
    ) as served_fleet:
        yield served_fleet


@pytest.fixture(scope="module")
def watcher(served_fleet: ServedFleet) -> list[Process]:
    """List with the running watcher. A test may replace the watcher."""
    return [served_fleet.fleet.watcher()]


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def path() -> str:
    return next(PATHS)


class Owner:
    """Client of the owner of a webhook, over HTTP+JSON."""

    def __init__(self, served_fleet: ServedFleet, task_id: str) -> None:
        self._gateway = served_fleet.gateway
        self._webhook = f"/webhooks/{task_id}/mine"

    def deliveries(self) -> dict[str, Any]:
        """Return the state of the webhook with its deliveries."""
        return self._answer("GET", "/deliveries", 200)

    def replay(self, event: str = "") -> dict[str, Any]:
        """Request the replay of an event, or of all failed ones, and return the response."""
        return self._answer("POST", f"/deliveries/{event}:replay" if event else "/deliveries:replay", 202)

    def request_ping(self) -> str:
        """Request a ping and return its id."""
        ping: str = self._answer("POST", ":ping", 202)["ping"]
        return ping

    def attempts(self, **fields: Any) -> list[dict[str, Any]]:
        """Wait for deliveries with the values `fields`, and return them."""

        def matching_deliveries() -> list[dict[str, Any]]:
            deliveries: list[dict[str, Any]] = self.deliveries()["deliveries"]
            return [
                delivery
                for delivery in deliveries
                if all(delivery.get(name) == value for name, value in fields.items())
            ]

        return eventually(matching_deliveries, what=f"a delivery with {fields}")

    def _answer(self, verb: str, path: str, status: int) -> dict[str, Any]:
        answer = rest(self._gateway, verb, self._webhook + path, agent="count")
        assert answer.status_code == status, answer.text
        content: dict[str, Any] = answer.json()
        return content


def send_with_webhook(served_fleet: ServedFleet, url: str) -> Owner:
    """Send a message with a webhook, and return the owner of the webhook."""
    params = body_with_config(message_json("2"), url, id="mine")
    answer = rpc(served_fleet.gateway, "SendMessage", params, agent="count")
    return Owner(served_fleet, answer["result"]["task"]["id"])


def pings(posts: list[ReceivedPost]) -> list[ReceivedPost]:
    return [got for got in posts if got.json().get("type") == "webhook.ping"]


def wait_for_delivery(owner: Owner) -> dict[str, Any]:
    """Wait until all deliveries have been posted, and return the webhook's state."""

    def is_delivered() -> dict[str, Any] | None:
        delivery_page = owner.deliveries()
        return delivery_page if delivery_page["state"] == "delivered" else None

    return eventually(is_delivered, what="everything is delivered")


def test_the_owner_sees_a_receiver_fail_and_work_again(
    served_fleet: ServedFleet, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [500, 503])
    owner = send_with_webhook(served_fleet, hooks.url(path))

    delivery_page = wait_for_delivery(owner)

    posts = hooks.requests(path)
    newest, *_, second, first = delivery_page["deliveries"]
    assert [attempt["status"] for attempt in (first, second)] == [500, 503]
    assert {attempt["event"] for attempt in (first, second)} == {posts[0].headers["webhook-id"].rpartition("_")[2]}
    assert (newest["outcome"], newest["status"], version_of(posts[-1])) == (
        "delivered",
        200,
        delivery_page["lastEvent"],
    )
    assert first["reason"] == "answered 500"
    assert first["time"] < first["nextTry"]
    assert len(delivery_page["deliveries"]) == len(posts)


def test_abandoned_events_are_delivered_after_a_replay_and_the_restart_of_a_watcher(
    served_fleet: ServedFleet, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [410])
    owner = send_with_webhook(served_fleet, hooks.url(path))
    [attempt] = owner.attempts(outcome="gone")
    assert (attempt["status"], owner.deliveries()["state"]) == (410, "dead")
    watcher.pop().kill()

    assert owner.replay()["state"] == "waiting"
    assert len(hooks.requests(path)) == 1
    watcher.append(served_fleet.fleet.watcher())

    delivery_page = wait_for_delivery(owner)
    assert delivery_page["delivered"] == delivery_page["lastEvent"]
    assert [version_of(got) for got in hooks.requests(path)][:2] == [1, 1]
    require_signed(hooks.requests(path))


def test_an_event_comes_again_with_its_id_also_from_the_watcher_after_a_killed_one(
    served_fleet: ServedFleet, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    owner = send_with_webhook(served_fleet, hooks.url(path))
    post_count = len(wait_for_delivery(owner)["deliveries"])
    first = hooks.requests(path)[0]
    event = first.headers["webhook-id"].rpartition("_")[2]
    hooks.plan(path, [], then=silent())

    assert owner.replay(event)["requested"] == [event]
    hooks.wait_for(path, post_count + 1)
    watcher.pop().kill()
    hooks.plan(path, [])
    watcher.append(served_fleet.fleet.watcher())

    def is_made() -> bool:
        return owner.deliveries()["requested"] == []

    eventually(is_made, what="the replay is made")
    repeated_post = hooks.requests(path)[-1]
    assert (repeated_post.headers["webhook-id"], repeated_post.body) == (first.headers["webhook-id"], first.body)
    assert owner.deliveries()["deliveries"][0] | {"time": "", "latencyMs": 0} == {
        "time": "", "event": event, "outcome": "delivered", "status": 200, "latencyMs": 0,
    }  # fmt: skip


def test_a_ping_shows_whether_the_receiver_works(
    served_fleet: ServedFleet, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    owner = send_with_webhook(served_fleet, hooks.url(path))
    state_before = wait_for_delivery(owner)
    hooks.plan(path, [], then=HANG_UP)

    [failed_attempt] = owner.attempts(ping=owner.request_ping())
    hooks.plan(path, [204])
    [successful_attempt] = owner.attempts(ping=owner.request_ping())

    assert (failed_attempt["outcome"], "status" in failed_attempt) == ("failed", False)
    assert failed_attempt["reason"] == "the connection was closed without a response"
    assert (successful_attempt["outcome"], successful_attempt["status"]) == ("delivered", 204)
    posts = hooks.requests(path)
    assert pings(posts)
    require_signed(pings(posts))
    state_after = owner.deliveries()
    assert [state_after[name] for name in ("state", "failures", "lastEvent")] == [
        state_before[name] for name in ("state", "failures", "lastEvent")
    ]


def test_a_ping_that_is_requested_without_a_watcher_is_made_by_the_next(
    served_fleet: ServedFleet, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    owner = send_with_webhook(served_fleet, hooks.url(path))
    wait_for_delivery(owner)
    watcher.pop().kill()

    ping = owner.request_ping()
    assert owner.deliveries()["requested"] == [ping]
    watcher.append(served_fleet.fleet.watcher())

    [attempt] = owner.attempts(ping=ping)
    assert (attempt["outcome"], attempt["status"]) == ("delivered", 200)
    assert len(pings(hooks.requests(path))) == 1
