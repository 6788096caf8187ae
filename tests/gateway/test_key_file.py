"""File of API keys, which a gateway reads again when the file changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from a2a_celery.gateway.auth.authenticator import Authenticator
from a2a_celery.gateway.auth.from_settings import authenticator_from_settings
from a2a_celery.gateway.auth.key_file import CHECK_EVERY, VARIABLE
from a2a_celery.gateway.auth.schemes import CredentialsRefused, PresentedCredentials
from a2a_celery.settings.loading import load_settings
from tests.support.clients.credentials import api_key_entry
from tests.support.clocks import ManualClock

ANN, BEN = api_key_entry("ann", "one"), api_key_entry("ben", "two")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of a file with the keys of ann and ben, which is the file of the process's settings."""
    path = tmp_path / "api_keys"
    path.write_text(f"{ANN}\n{BEN}\n")
    monkeypatch.setenv(VARIABLE, str(path))
    return path


@pytest.fixture
def authenticator(path: Path, clock: ManualClock) -> Authenticator:
    authenticator = authenticator_from_settings(load_settings({"a2a_store_url": "redis://host"}, os.environ), clock)
    assert authenticator is not None
    return authenticator


async def owner_of(authenticator: Authenticator, key: str) -> str | None:
    """Return the owner of a key, or None if the key is refused."""
    presented = PresentedCredentials(lambda name: [key] if name == "x-api-key" else [], None)
    try:
        return (await authenticator.identify(presented)).owner
    except CredentialsRefused:
        return None


def replace(path: Path, text: str) -> None:
    """Replace a file as ``a2a-celery keys`` does."""
    temporary = path.with_name("temporary")
    temporary.write_bytes(text.encode(errors="surrogatepass"))
    temporary.replace(path)


def remove(path: Path) -> None:
    path.unlink()


async def test_added_keys_work_and_removed_keys_stop_within_a_second(
    authenticator: Authenticator, path: Path, clock: ManualClock
) -> None:
    replace(path, f"{BEN}:acme\n{api_key_entry('eve', 'three')}\n")

    assert await owner_of(authenticator, "one") == "ann"
    clock.advance(CHECK_EVERY)

    assert await owner_of(authenticator, "one") is None
    assert await owner_of(authenticator, "two") == "ben"
    assert await owner_of(authenticator, "three") == "eve"


async def test_a_file_that_is_valid_again_is_reported_once(
    authenticator: Authenticator, path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    valid_text = f"{ANN}\n{BEN}\n"
    with caplog.at_level(logging.INFO):
        for text in ("not-an-entry", valid_text, valid_text):
            replace(path, text)
            clock.advance(CHECK_EVERY)
            assert await owner_of(authenticator, "one") == "ann"

    _, line = (record.getMessage() for record in caplog.records if record.name.endswith("key_file"))
    assert line == f"read 2 API keys again from {path}"


@pytest.mark.parametrize("text", ["", "\n", f"{BEN}\nnot-an-entry\n", f"{BEN}\n{BEN}\n", "\ud800"])
async def test_an_invalid_file_keeps_the_keys_and_is_reported_once(
    authenticator: Authenticator, path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, text: str
) -> None:
    replace(path, text)

    with caplog.at_level(logging.INFO):
        for _ in range(3):
            clock.advance(CHECK_EVERY)
            assert await owner_of(authenticator, "one") == "ann"

    [record] = [record for record in caplog.records if record.name.endswith("key_file")]
    assert record.levelno == logging.ERROR
    assert record.getMessage().endswith("; the previous API keys stay valid")
    assert "not-an-entry" not in record.getMessage()


async def test_a_file_that_is_missing_for_a_while_keeps_the_keys(
    authenticator: Authenticator, path: Path, clock: ManualClock
) -> None:
    remove(path)
    clock.advance(CHECK_EVERY)
    assert await owner_of(authenticator, "one") == "ann"

    replace(path, f"{BEN}\n")
    clock.advance(CHECK_EVERY)
    assert await owner_of(authenticator, "one") is None


async def test_a_file_that_has_not_changed_is_not_reported(
    authenticator: Authenticator, path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        clock.advance(CHECK_EVERY)
        assert await owner_of(authenticator, "one") == "ann"

    assert caplog.records == []


async def test_a_change_between_the_start_and_the_first_request_is_read(path: Path, clock: ManualClock) -> None:
    settings = load_settings({"a2a_store_url": "redis://host"}, os.environ)
    replace(path, f"{BEN}\n")
    authenticator = authenticator_from_settings(settings, clock)
    assert authenticator is not None

    clock.advance(CHECK_EVERY)

    assert await owner_of(authenticator, "one") is None
