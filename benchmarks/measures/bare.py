"""Echoes through the gateway, and ``apply_async().get()`` of a bare Celery task, on one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from celery import Celery

from .. import load
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..sides import Side
from ..stage import Stage

AT_ONCE = 16
ECHOES = 400


def measure(stage: Stage) -> Sequence[Result]:
    """Measure the rates of this project and of bare Celery with 16 calls at once."""
    side = stage.side("ours")
    assert side.fleet is not None
    processes = {name: pid for name, pid in side.processes.items() if name != "gateway"}

    def ours() -> float:
        return ECHOES / asyncio.run(load.together(lambda session: load.echo(session, side.url), ECHOES, AT_ONCE))

    with Celery(broker=side.fleet.broker_url, backend=side.fleet.redis.broker_url, set_as_current=False) as client:
        bare = Contender("celery", bare_echoes(client, side), processes, ECHOES)
        contenders = [Contender("ours", ours, side.processes, ECHOES), bare]
        taken = interleaved(stage.options.rounds, contenders)
    return [
        Result(
            name="bare-celery",
            what=f"echoes, {AT_ONCE} at once, beside bare apply_async().get() on the same worker",
            unit="a second",
            figures=taken.figures,
            more_is_better=True,
            targets=(Target(0.9, "celery"),),
            processor=taken.processor,
        )
    ]


def bare_echoes(client: Celery, side: Side) -> Callable[[], float]:
    """Return a function that calls the Celery task from threads and returns the rate per second."""
    assert side.fleet is not None
    queue = side.fleet.queue

    def call(_: int) -> None:
        for _ in range(ECHOES // AT_ONCE):
            assert client.send_task("bare.echo", ("hello",), queue=queue).get(timeout=60) == "hello"

    def once() -> float:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            began = perf_counter()
            list(threads.map(call, range(AT_ONCE)))
            return ECHOES / (perf_counter() - began)

    return once
