"""Log messages of processes that start with an unavailable or unsafe store."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import redis
from celery import Celery
from celery.signals import setup_logging
from click.testing import CliRunner

from a2a_celery import A2A
from a2a_celery.cli.commands import a2a as commands
from a2a_celery.cli.options import available_port
from a2a_celery.execution.celery.start_check import worker_starts
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.admin.start_check import watchers
from tests.support.processes.restarts import MortalRedis, mortal_redis
from tests.support.waiting import eventually_async

Start = Callable[[A2A], Awaitable[None]]


def make_app(url: str) -> A2A:
    app = Celery("tests", broker="memory://localhost", set_as_current=False)
    app.conf.update(a2a_store_url=url, a2a_auth_api_keys=f"ann:sha256:{'0' * 64}")
    a2a = A2A(app)
    a2a.agent("echo", description="Echoes.")(lambda turn: turn.text)
    return a2a


async def gateway(a2a: A2A) -> None:
    asgi = a2a.asgi()
    async with asgi.router.lifespan_context(asgi):
        pass


async def watcher(a2a: A2A) -> None:
    stop = asyncio.Event()
    stop.set()
    await a2a.watcher().run(stop)


async def worker(a2a: A2A) -> None:
    a2a.worker()  # a worker's signals are connected at its start
    await asyncio.to_thread(worker_starts, SimpleNamespace(app=a2a.celery))


def keep_logging(**_: object) -> None:
    """Leave logging as pytest has configured it. This function is a receiver of Celery's signal."""


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return the warnings that a2a_celery logged."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("a2a_celery")
    ]


@pytest.mark.parametrize("agents", [["echo"], []])
def test_a_worker_without_a_store_url_refuses_to_start(
    agents: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("A2A_STORE_URL", raising=False)
    a2a = A2A(Celery("tests", broker="memory://localhost", set_as_current=False))
    for name in agents:
        a2a.agent(name)(lambda turn: turn.text)

    a2a.worker().guard_broker()
    with pytest.raises(SystemExit, match=r"^Error: a2a_store_url is not set, "):
        a2a.worker().check_start(SimpleNamespace(app=a2a.celery))

    assert caplog.records == [], "the error is printed once, without a traceback"


@pytest.mark.parametrize(
    ("options", "environ", "beyond"),
    [
        (("--host", "0.0.0.0"), {}, ["listening on 0.0.0.0 without authentication: other machines reach it too"]),
        (("--host", "127.0.0.1"), {}, []),
        (("--grpc-port", "1", "--host", "10.0.0.1"), {}, ["listening on 10.0.0.1 without authentication"]),
        (("--host", "0.0.0.0"), {"A2A_AUTH_API_KEYS": f"ann:sha256:{'0' * 64}"}, []),
    ],
)
def test_a_gateway_that_listens_beyond_this_machine_without_authentication_warns(
    options: tuple[str, ...],
    environ: dict[str, str],
    beyond: list[str],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a2a = make_app("redis://127.0.0.1:1/0")
    a2a.celery.conf.a2a_auth_api_keys = None
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    monkeypatch.setattr("a2a_celery.cli.serve.gateway.available_port", lambda *_, **__: 0)
    # the command sets this variable; monkeypatch restores it
    for name, value in ({"A2A_GRPC_PORT": ""} | environ).items():
        monkeypatch.setenv(name, value)

    setup_logging.connect(keep_logging)
    try:
        result = CliRunner().invoke(commands, ["gateway", *options], obj=SimpleNamespace(app=a2a.celery))
    finally:
        setup_logging.disconnect(keep_logging)

    assert result.exit_code == 0, result.output
    lines = [line for line in warnings(caplog) if line.startswith("listening on")]
    assert [line.startswith(start) for line, start in zip(lines, beyond, strict=True)] == [True] * len(beyond)


@pytest.mark.parametrize("option", ["--port", "--grpc-port"])
def test_a_gateway_with_a_port_in_use_prints_one_line(option: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a2a = make_app("redis://127.0.0.1:1/0")
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    monkeypatch.setenv("A2A_GRPC_PORT", "")  # the command sets this variable; monkeypatch restores it
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        arguments = ["gateway", "--port", "0", option, str(port)]
        result = CliRunner().invoke(commands, arguments, obj=SimpleNamespace(app=a2a.celery))

    assert result.exit_code == 1
    assert result.output.splitlines()[-1] == (
        f"Error: cannot listen on 127.0.0.1 port {port} (Address already in use): choose another with {option}"
    )


def test_two_gateways_may_share_the_port_for_grpc() -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]

        assert available_port("127.0.0.1", port, "--grpc-port", shared=True) == port


@pytest.fixture(scope="module")
def evicting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MortalRedis]:
    """Redis server that evicts keys when it is full."""
    with mortal_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.mark.usefixtures("immediate_retries")
@pytest.mark.parametrize("start", [gateway, watcher, worker])
async def test_an_unavailable_store_is_one_line_with_its_address_and_the_reason(
    start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    await start(make_app("redis://:s3cret@127.0.0.1:1/3"))

    [line] = warnings(caplog)
    assert line.startswith("the store at 127.0.0.1:1, database 3, is unavailable: Connection refused; ")
    assert "s3cret" not in caplog.text


@pytest.mark.usefixtures("immediate_retries")
async def test_a_watcher_begins_when_the_store_is_available(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "a2a_celery")
    with mortal_redis(tmp_path) as server:
        server.die()
        stop = asyncio.Event()
        watching = asyncio.ensure_future(make_app(server.store_url).watcher().run(stop))

        async def is_logged(text: str) -> bool:
            return text in caplog.text

        await eventually_async(lambda: is_logged("is unavailable"), what="the missing store is logged")
        server.start()
        await eventually_async(lambda: is_logged("watcher started with the roles: "), what="it watches")
        stop.set()
        await watching

    assert len(warnings(caplog)) == 1


async def test_a_stopped_watcher_is_logged_and_not_listed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "a2a_celery")
    with mortal_redis(tmp_path) as server:
        store, stop = AsyncStore(server.store_url), asyncio.Event()
        watching = asyncio.ensure_future(make_app(server.store_url).watcher().run(stop))

        async def is_listed() -> bool:
            return len(await store.run(watchers(Keys("a2a")))) == 1

        await eventually_async(is_listed, what="the watcher is listed")
        stop.set()
        await watching

        assert not await is_listed()
        await store.aclose()
    # the thread that listens for revokes may log later
    lines = [record.getMessage() for record in caplog.records if record.name == "a2a_celery.watcher.service"]
    assert lines[-1] == "watcher stopped"


async def test_a_watcher_stops_while_the_store_is_unavailable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "a2a_celery")
    with mortal_redis(tmp_path) as server:
        stop = asyncio.Event()
        watching = asyncio.ensure_future(make_app(server.store_url).watcher().run(stop))

        async def is_started() -> bool:
            return "watcher started" in caplog.text

        await eventually_async(is_started, what="the watcher has started")
        server.die()
        stop.set()
        await asyncio.wait_for(watching, 10)

    assert "watcher stopped" in caplog.text


@pytest.mark.parametrize("start", [gateway, watcher, worker])
async def test_a_policy_that_deletes_tasks_is_a_warning(
    start: Start, evicting: MortalRedis, caplog: pytest.LogCaptureFixture
) -> None:
    with redis.Redis.from_url(evicting.store_url) as server:
        server.config_set("maxmemory-policy", "noeviction")
        await start(make_app(evicting.store_url))
        assert warnings(caplog) == []

        server.config_set("maxmemory-policy", "allkeys-lru")
        await start(make_app(evicting.store_url))

    [line] = warnings(caplog)
    assert line.startswith("the store's maxmemory-policy is allkeys-lru: Redis deletes tasks")
