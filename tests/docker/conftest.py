"""Tests that need a Docker engine. `pytest` without arguments does not run them, but `pytest tests/docker` does."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from selenium import webdriver

from tests.support.clients.browser import chromium
from tests.support.clients.browser import missing_programs as missing_browser

from .engine import missing_docker

why_missing = cache(missing_docker)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip the test if no Docker engine is available. In CI, exit instead, so that there is one message for all
    tests."""
    reason = why_missing()
    if reason and os.environ.get("CI"):
        pytest.exit(f"no Docker engine here ({reason}), and CI needs one", returncode=1)
    if reason:
        pytest.skip(f"no Docker engine here ({reason})")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """Headless Chromium."""
    if missing_browser():
        if os.environ.get("CI"):
            pytest.fail(f"no {missing_browser()} here, and CI needs them")
        pytest.skip(f"no {missing_browser()} here")
    with chromium(tmp_path) as driver:
        yield driver
