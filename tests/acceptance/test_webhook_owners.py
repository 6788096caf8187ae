"""Deliveries, replays and pings over HTTP for the owner of a webhook, even after a watcher's restart."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from tests.support.clients import Served, message_json, rest, rpc, serving
from tests.support.fleet import Process
from tests.support.posts import DELIVERING, require_signed, version_of, with_config
from tests.support.receiver import HANG_UP, Received, Receiver, receiver, silent
from tests.support.waiting import eventually

PATHS = (f"/hook/{number}" for number in count())
"""Paths of the webhooks. Each webhook uses a new path."""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("fleet"), pool="threads", concurrency=8, grpc=False, **DELIVERING) as served:
        yield served


@pytest.fixture(scope="module")
def watcher(served: Served) -> list[Process]:
    """List with the running watcher. A test may replace the watcher."""
    return [served.fleet.watcher()]


@pytest.fixture(scope="module")
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def path() -> str:
    return next(PATHS)


class Owner:
    """Client of the owner of a webhook, over HTTP+JSON."""

    def __init__(self, served: Served, task_id: str) -> None:
        self._gateway = served.gateway
        self._webhook = f"/webhooks/{task_id}/mine"

    def deliveries(self) -> dict[str, Any]:
        """Return the state of the webhook with its deliveries."""
        return self._answer("GET", "/deliveries", 200)

    def replay(self, event: str = "") -> dict[str, Any]:
        """Request the replay of an event, or of all failed ones, and return the response."""
        return self._answer("POST", f"/deliveries/{event}:replay" if event else "/deliveries:replay", 202)

    def ping(self) -> str:
        """Request a ping and return its id."""
        ping: str = self._answer("POST", ":ping", 202)["ping"]
        return ping

    def attempts(self, **fields: Any) -> list[dict[str, Any]]:
        """Wait for deliveries with the values `fields`, and return them."""

        def there() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = self.deliveries()["deliveries"]
            return [one for one in found if all(one.get(name) == value for name, value in fields.items())]

        return eventually(there, what=f"a delivery with {fields}")

    def _answer(self, verb: str, path: str, status: int) -> dict[str, Any]:
        answer = rest(self._gateway, verb, self._webhook + path, agent="count")
        assert answer.status_code == status, answer.text
        found: dict[str, Any] = answer.json()
        return found


def sent(served: Served, url: str) -> Owner:
    """Send a message with a webhook, and return the owner of the webhook."""
    params = with_config(message_json("2"), url, id="mine")
    answer = rpc(served.gateway, "SendMessage", params, agent="count")
    return Owner(served, answer["result"]["task"]["id"])


def pings(posts: list[Received]) -> list[Received]:
    return [got for got in posts if got.json().get("type") == "webhook.ping"]


def delivered(owner: Owner) -> dict[str, Any]:
    """Wait until all deliveries have been posted, and return the webhook's state."""

    def is_delivered() -> dict[str, Any] | None:
        found = owner.deliveries()
        return found if found["state"] == "delivered" else None

    return eventually(is_delivered, what="everything is delivered")


def test_the_owner_sees_a_receiver_fail_and_work_again(
    served: Served, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [500, 503])
    owner = sent(served, hooks.url(path))

    found = delivered(owner)

    posts = hooks.received(path)
    newest, *_, second, first = found["deliveries"]
    assert [one["status"] for one in (first, second)] == [500, 503]
    assert {one["event"] for one in (first, second)} == {posts[0].headers["webhook-id"].rpartition("_")[2]}
    assert (newest["outcome"], newest["status"], version_of(posts[-1])) == ("delivered", 200, found["lastEvent"])
    assert first["reason"] == "answered 500"
    assert first["time"] < first["nextTry"]
    assert len(found["deliveries"]) == len(posts)


def test_abandoned_events_are_delivered_after_a_replay_and_the_restart_of_a_watcher(
    served: Served, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    hooks.plan(path, [410])
    owner = sent(served, hooks.url(path))
    [attempt] = owner.attempts(outcome="gone")
    assert (attempt["status"], owner.deliveries()["state"]) == (410, "dead")
    watcher.pop().kill()

    assert owner.replay()["state"] == "waiting"
    assert len(hooks.received(path)) == 1
    watcher.append(served.fleet.watcher())

    found = delivered(owner)
    assert found["delivered"] == found["lastEvent"]
    assert [version_of(got) for got in hooks.received(path)][:2] == [1, 1]
    require_signed(hooks.received(path))


def test_an_event_comes_again_with_its_id_also_from_the_watcher_after_a_killed_one(
    served: Served, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    owner = sent(served, hooks.url(path))
    posted = len(delivered(owner)["deliveries"])
    first = hooks.received(path)[0]
    event = first.headers["webhook-id"].rpartition("_")[2]
    hooks.plan(path, [], then=silent())

    assert owner.replay(event)["requested"] == [event]
    hooks.wait_for(path, posted + 1)
    watcher.pop().kill()
    hooks.plan(path, [])
    watcher.append(served.fleet.watcher())

    def is_made() -> bool:
        return owner.deliveries()["requested"] == []

    eventually(is_made, what="the replay is made")
    again = hooks.received(path)[-1]
    assert (again.headers["webhook-id"], again.body) == (first.headers["webhook-id"], first.body)
    assert owner.deliveries()["deliveries"][0] | {"time": "", "latencyMs": 0} == {
        "time": "", "event": event, "outcome": "delivered", "status": 200, "latencyMs": 0,
    }  # fmt: skip


def test_a_ping_shows_whether_the_receiver_works(
    served: Served, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    owner = sent(served, hooks.url(path))
    before = delivered(owner)
    hooks.plan(path, [], then=HANG_UP)

    [failed] = owner.attempts(ping=owner.ping())
    hooks.plan(path, [204])
    [worked] = owner.attempts(ping=owner.ping())

    assert (failed["outcome"], "status" in failed) == ("failed", False)
    assert failed["reason"] == "the connection was closed without a response"
    assert (worked["outcome"], worked["status"]) == ("delivered", 204)
    posts = hooks.received(path)
    assert pings(posts)
    require_signed(pings(posts))
    after = owner.deliveries()
    assert [after[name] for name in ("state", "failures", "lastEvent")] == [
        before[name] for name in ("state", "failures", "lastEvent")
    ]


def test_a_ping_that_is_requested_without_a_watcher_is_made_by_the_next(
    served: Served, watcher: list[Process], hooks: Receiver, path: str
) -> None:
    owner = sent(served, hooks.url(path))
    delivered(owner)
    watcher.pop().kill()

    ping = owner.ping()
    assert owner.deliveries()["requested"] == [ping]
    watcher.append(served.fleet.watcher())

    [made] = owner.attempts(ping=ping)
    assert (made["outcome"], made["status"]) == ("delivered", 200)
    assert len(pings(hooks.received(path))) == 1
