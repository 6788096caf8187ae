"""Who finds a fast host busy waits a moment for a place; who finds it resting, or many who wait, does not."""

from __future__ import annotations

import asyncio

from a2a_celery.push import Delivered, Held, Hosts, Poster, PostRequest, Result
from a2a_celery.push.hosts import MOST_WAITING, Place
from tests.support import receiver as behaviour
from tests.support.receiver import receiver

from .names import LOCAL

LONG = 30.0


def places(hosts: Hosts, times: int) -> list[Place]:
    found = [hosts.enter("a") for _ in range(times)]
    assert all(isinstance(one, Place) for one in found)
    return [one for one in found if isinstance(one, Place)]


async def asking(hosts: Hosts, patience: float = LONG) -> asyncio.Task[Place | Held]:
    """Somebody who asks for a place, and has been heard."""
    asked = asyncio.create_task(hosts.place("a", patience))
    await asyncio.sleep(0)
    return asked


async def test_the_first_who_waits_gets_the_place_that_is_left() -> None:
    hosts = Hosts(per_host=2)
    one, other = places(hosts, 2)
    first, second = await asking(hosts), await asking(hosts)

    one.leave(True)
    got = await first
    assert isinstance(got, Place)
    assert isinstance(hosts.enter("a"), Held)
    assert not second.done()
    other.leave(True)
    also = await second
    assert isinstance(also, Place)
    for place in (got, also):
        place.leave(True)
    assert hosts.remembered == 0


async def test_nobody_waits_longer_than_he_may() -> None:
    hosts = Hosts(per_host=1)
    (one,) = places(hosts, 1)

    assert isinstance(await hosts.place("a", 0.01), Held)
    assert isinstance(await hosts.place("a", 0.0), Held)
    one.leave(True)
    assert hosts.remembered == 0


async def test_only_so_many_wait() -> None:
    hosts = Hosts(per_host=1)
    (one,) = places(hosts, 1)
    waiting = [await asking(hosts) for _ in range(MOST_WAITING)]

    assert hosts.held("a", waits=True) is not None
    assert isinstance(await hosts.place("a", LONG), Held)
    one.leave(True)
    for task in waiting:
        got = await task
        assert isinstance(got, Place)
        got.leave(True)


async def test_when_the_host_begins_to_rest_all_are_told() -> None:
    hosts = Hosts(per_host=2, open_after=1)
    one, other = places(hosts, 2)
    waiting = [await asking(hosts) for _ in range(3)]

    one.leave(False)
    found = [await task for task in waiting]
    assert all(isinstance(held, Held) and held.dead for held in found)
    other.leave(None)


async def test_who_is_cancelled_leaves_his_turn_and_his_place_to_the_next() -> None:
    hosts = Hosts(per_host=1)
    (one,) = places(hosts, 1)
    first, second, third = [await asking(hosts) for _ in range(3)]

    first.cancel()
    one.leave(True)
    second.cancel()  # in the moment in which it gets the place
    got = await asyncio.wait_for(third, LONG)
    assert isinstance(got, Place)
    got.leave(True)
    assert (first.cancelled(), second.cancelled(), hosts.remembered) == (True, True, 0)


async def test_many_posts_to_one_host_come_one_behind_the_other() -> None:
    with receiver() as hooks:
        hooks.plan("/hook", [], then=behaviour.slow(0.05))
        said = PostRequest(hooks.url(), {"Content-Type": "application/a2a+json"}, b"{}")
        async with Poster(LOCAL, hosts=Hosts(per_host=2)) as poster:

            async def post() -> Result:
                return await poster.post(said, await poster.way(said.url, patience=LONG))

            results = await asyncio.gather(*(post() for _ in range(MOST_WAITING)))

        assert results == [Delivered(200)] * MOST_WAITING
        assert (hooks.most_at_once("/hook"), hooks.connections) == (2, 2)
