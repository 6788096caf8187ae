"""Metrics of processes that share a port and a folder. Gauges of dead processes are removed, and counters are kept."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from prometheus_client.exposition import generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.applications import Starlette
from starlette.types import Receive, Scope, Send

from a2a_celery.gateway.metrics import FOLDER, MAX_AGE, Metrics, drop_dead_processes
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.telemetry.names import package_metrics
from tests.execution.scene import Gate
from tests.support.clocks import ManualClock

KILLED = """
import os
from a2a_celery.gateway.metrics import Metrics
metrics = Metrics(None, None, ["echo"])
metrics.count_request("echo", "GetTask", "ok")
with metrics.open_stream("echo"):
    os._exit(1)
"""
"""Program that dies while a stream is open."""


def stored_metrics(folder: Path) -> str:
    """Return the metrics that processes have stored in `folder`."""
    collector = MultiProcessCollector(None, str(folder))  # type: ignore[no-untyped-call]
    return generate_latest(package_metrics(collector)).decode()


def test_streams_of_a_process_that_was_killed_are_forgotten_and_its_requests_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run([sys.executable, "-c", KILLED], env={FOLDER: str(tmp_path)}, check=False)
    output_before = stored_metrics(tmp_path)
    assert 'a2a_gateway_open_streams{agent="echo"} 1.0' in output_before

    monkeypatch.setenv(FOLDER, str(tmp_path))
    drop_dead_processes()

    output_after = stored_metrics(tmp_path)
    assert "a2a_gateway_open_streams{" not in output_after
    for text in (output_before, output_after):
        assert 'a2a_gateway_requests_total{agent="echo",operation="GetTask",outcome="ok"} 1.0' in text


async def test_concurrent_scrapes_share_one_read_of_a_hanging_store(store: AsyncStore, keys: Keys) -> None:
    """A read that fails takes time, and sequential scrapes would wait longer each time."""
    gate = Gate(store)
    metrics = Metrics(gate, keys, ["echo"])
    app = Starlette(routes=metrics.routes())
    all_are_here = asyncio.Barrier(5)

    async def together(scope: Scope, receive: Receive, send: Send) -> None:
        if gate.calls == []:
            await all_are_here.wait()
        await app(scope, receive, send)

    transport = httpx.ASGITransport(together)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        gate.refuse = 2  # the two operations of one scrape
        answers = await asyncio.gather(*(client.get("/metrics") for _ in range(5)))

        assert [answer.status_code for answer in answers] == [503] * 5
        assert sorted(gate.calls) == ["delivery_metrics", "read_metrics"]
        assert (await client.get("/metrics")).status_code == 200


async def test_the_store_is_asked_again_when_its_answer_is_not_fresh(store: AsyncStore, keys: Keys) -> None:
    gate, clock = Gate(store), ManualClock()
    metrics = Metrics(gate, keys, ["echo"], clock)
    transport = httpx.ASGITransport(Starlette(routes=metrics.routes()))
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        for seconds, read_count in ((0, 1), (MAX_AGE, 1), (0.1, 2), (MAX_AGE, 2)):
            clock.advance(seconds)
            await client.get("/metrics")
            assert gate.calls.count("read_metrics") == read_count
