"""Blocking echoes: many at once, and one at a time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence

from .. import load
from ..environment import Environment
from ..results import PROJECT, Result, Target
from ..rounds import Contender, Measurements, interleaved
from ..servers import Server

AT_ONCE = 16
ASYNCIO = "asyncio"
"""Name of this project's server whose worker uses the asyncio pool."""

ECHOES = {"cluster": 96}
"""Number of concurrent echoes in a round by server. The default is 400."""

ONE_BY_ONE = {"cluster": 20}
"""Number of echoes in a round, one at a time, by server. The default is 150."""

SLOW = {"cluster": 2}
"""Maximum number of rounds of slow servers."""


def at_once(environment: Environment) -> Sequence[Result]:
    """Measure the rate of echoes of 16 concurrent callers."""

    def contender(server: Server) -> Contender:
        echoes = ECHOES.get(server.name, 400)

        def once() -> float:
            return echoes / asyncio.run(load.together(lambda s: load.echo(s, server.url), echoes, AT_ONCE))

        return Contender(server.name, once, server.processes, echoes, SLOW.get(server.name))

    measurements = interleaved(environment.options.rounds, [contender(server) for server in _servers(environment)])
    targets = (Target(0.8, "floor"), Target(1.2, "sdk"), Target(10, "cluster"))
    return _results("echo", f"blocking echoes, {AT_ONCE} at once", "a second", measurements, targets)


def alone(environment: Environment) -> Sequence[Result]:
    """Measure the median duration of one caller's echoes."""

    def contender(server: Server) -> Contender:
        echoes = ONE_BY_ONE.get(server.name, 150)

        def once() -> float:
            return statistics.median(asyncio.run(load.alone(lambda s: load.echo(s, server.url), echoes))) * 1000

        return Contender(server.name, once, server.processes, echoes, SLOW.get(server.name))

    measurements = interleaved(environment.options.rounds, [contender(server) for server in _servers(environment)])
    targets = (Target(1.25, "floor", at_least=False), Target(1, "sdk", at_least=False))
    return _results("echo-alone", "blocking echo, one at a time, p50", "ms", measurements, targets)


def _servers(environment: Environment) -> list[Server]:
    return environment.servers("a2a-celery", ASYNCIO, "floor", "sdk", "cluster")


def _results(
    name: str, what: str, unit: str, measurements: Measurements, targets: Sequence[Target]
) -> Sequence[Result]:
    """Return the results of this project's prefork pool and asyncio pool, each compared with all other servers."""
    peers = {server: values for server, values in measurements.figures.items() if server not in (PROJECT, ASYNCIO)}
    spent = {server: processes for server, processes in measurements.processor.items() if server != ASYNCIO}
    more_is_better = targets[0].at_least
    on_prefork = Result(
        name, what, unit, {PROJECT: measurements.figures[PROJECT], **peers}, more_is_better, targets, spent
    )
    return [
        on_prefork,
        Result(
            f"{name}-asyncio",
            f"{what}, in the asyncio pool",
            unit,
            {PROJECT: measurements.figures[ASYNCIO], **peers},
            more_is_better,
            processor={PROJECT: measurements.processor[ASYNCIO]},
        ),
    ]
