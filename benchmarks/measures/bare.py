"""Rates of echoes through the gateway and of ``apply_async().get()`` on a bare Celery task, with one worker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter

from celery import Celery

from .. import load
from ..environment import Environment
from ..results import Result, Target
from ..rounds import Contender, interleaved
from ..servers import Server

AT_ONCE = 16
ECHOES = 400


def measure(environment: Environment) -> Sequence[Result]:
    """Measure the rates of this project and of bare Celery with 16 calls at once."""
    server = environment.server("a2a-celery")
    assert server.fleet is not None
    processes = {name: pid for name, pid in server.processes.items() if name != "gateway"}

    def project() -> float:
        return ECHOES / asyncio.run(load.together(lambda session: load.echo(session, server.url), ECHOES, AT_ONCE))

    with Celery(broker=server.fleet.broker_url, backend=server.fleet.redis.broker_url, set_as_current=False) as client:
        bare = Contender("celery", bare_echoes(client, server), processes, ECHOES)
        contenders = [Contender("a2a-celery", project, server.processes, ECHOES), bare]
        measurements = interleaved(environment.options.rounds, contenders)
    return [
        Result(
            name="bare-celery",
            what=f"echoes, {AT_ONCE} at once, beside bare apply_async().get() on the same worker",
            unit="a second",
            figures=measurements.figures,
            more_is_better=True,
            targets=(Target(0.9, "celery"),),
            processor=measurements.processor,
        )
    ]


def bare_echoes(client: Celery, server: Server) -> Callable[[], float]:
    """Return a function that calls the Celery task from threads and returns the rate per second."""
    assert server.fleet is not None
    queue = server.fleet.queue

    def call(_: int) -> None:
        for _ in range(ECHOES // AT_ONCE):
            assert client.send_task("bare.echo", ("hello",), queue=queue).get(timeout=60) == "hello"

    def once() -> float:
        with ThreadPoolExecutor(AT_ONCE) as threads:
            began = perf_counter()
            list(threads.map(call, range(AT_ONCE)))
            return ECHOES / (perf_counter() - began)

    return once
