"""Tests of the operator's page in a real browser. `pytest` without arguments does not run them, but `pytest
tests/browser` does.

The tests need the extra `browser`, and Debian's packages chromium and chromium-driver. Without them, the tests fail.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from selenium import webdriver

from tests.support.clients.browser import WIDE, Page, chromium, missing_programs
from tests.support.processes.fleet import Fleet, Gateway, running_fleet


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    """Chromium for all tests."""
    if missing_programs():
        pytest.fail(f"no {missing_programs()} here: apt-get install chromium chromium-driver")
    with chromium(tmp_path_factory.mktemp("chromium")) as driver:
        yield driver


@pytest.fixture(scope="module")
def fleet_and_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    """Fleet whose gateway serves the page."""
    folder = tmp_path_factory.mktemp("fleet")
    with running_fleet(folder, app="tests.support.agents.page_agents", A2A_UI="on") as fleet:
        fleet.worker(pool="threads", concurrency=8)
        yield fleet, fleet.gateway()


@pytest.fixture
def page_url(fleet_and_gateway: tuple[Fleet, Gateway]) -> str:
    """URL of the gateway that serves the page."""
    return fleet_and_gateway[1].url


@pytest.fixture
def page(browser: webdriver.Chrome, page_url: str) -> Iterator[Page]:
    """Page in a wide window with the light colour scheme. After the test, require that the console has no violations of
    the Content-Security-Policy and no script errors."""
    page = Page(browser, page_url)
    page.shape(WIDE)
    yield page
    assert page.console() == []
