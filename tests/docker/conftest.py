"""Tests that need a Docker engine. A plain `pytest` leaves them out; `pytest tests/docker` runs them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from shutil import which

import pytest
from selenium import webdriver

from .engine import missing


@pytest.fixture(scope="session", autouse=True)
def engine() -> None:
    """There is one; without, these tests are skipped, and in CI the run ends."""
    why = missing()
    if why and os.environ.get("CI"):
        pytest.exit(f"no Docker engine here ({why}), and CI needs one", returncode=1)
    if why:
        pytest.skip(f"no Docker engine here ({why})")


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[webdriver.Chrome]:
    """Chromium, without a window."""
    chromium, driver = which("chromium"), which("chromedriver")
    if chromium is None or driver is None:
        if os.environ.get("CI"):
            pytest.fail("no chromium and chromedriver here, and CI needs them")
        pytest.skip("no chromium and chromedriver here")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    options.add_argument(f"--user-data-dir={tmp_path / 'profile'}")
    for quiet in ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "window-size=1500,900"):
        options.add_argument(f"--{quiet}")
    for silent in ("disable-background-networking", "disable-component-update", "disable-sync"):
        options.add_argument(f"--{silent}")  # it talks to nobody but the page
    opened = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield opened
    opened.quit()
