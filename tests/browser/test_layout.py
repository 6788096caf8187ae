"""Layout of the page: its head, and tables in windows of each width."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium import webdriver

from a2a_celery import __version__
from tests.support.clients.accessibility import violations
from tests.support.clients.browser import NARROW, WIDE, Page
from tests.support.clients.credentials import API_KEYS
from tests.support.processes.fleet import running_fleet

from .test_operator_actions import Scene
from .test_page import LONG, SIDEWAYS
from .test_views import CUT_OFF_CELLS, VIEWS

LINK_POSITIONS = """
return [...document.querySelectorAll('#views a')].map(one => one.getBoundingClientRect())
  .map(({ left, width }) => [Math.round(left * 10), Math.round(width * 10)])
"""


NARROW_LINES = """
return [...document.querySelectorAll('#view .task-title')]
  .filter((title) => title.lastChild.scrollWidth > title.lastChild.clientWidth)
  .filter((title) => title.lastChild.clientWidth < title.clientWidth - 1).map((title) => title.innerText)
"""
"""Script that returns the titles of tasks whose second line is cut before the end of its column."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Scene of a fleet in which all callers are operators."""
    env = {"A2A_UI": "on", "A2A_OPERATORS": "*"}
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.page_agents", **env) as fleet:
        yield Scene(fleet, fleet.gateway(), fleet.worker(pool="threads", concurrency=8))


@pytest.fixture
def page_url(scene: Scene) -> str:
    return scene.gateway.url


def test_the_links_of_the_views_do_not_move(page: Page, scene: Scene) -> None:
    page.open()
    page.until(lambda: len(page.all("#views a")) == len(VIEWS), "the links")
    before = page.script(LINK_POSITIONS)
    scene.begin("ask", until="INPUT_REQUIRED")

    page.until(lambda: re.search(r"[1-9]\d* wait for an answer", page.content("#views")), "the number of questions")
    assert page.script(LINK_POSITIONS) == before
    for name, address in VIEWS.items():
        page.script("location.hash = arguments[0]", address)
        page.until(lambda: page.all("#views [aria-current]"), "the current view")
        assert page.script(LINK_POSITIONS) == before, name


def test_the_product_and_its_version_are_named(page: Page) -> None:
    page.open()
    page.shows("#product", __version__)

    assert page.text("h1") == "a2a-celery"


def test_one_can_sign_in_only_where_the_gateway_has_credentials(
    browser: webdriver.Chrome, page: Page, tmp_path: Path
) -> None:
    page.open()
    page.shows("#product", __version__)
    assert not page.all("#credentials-button")

    with running_fleet(tmp_path, app="tests.support.agents.page_agents", A2A_UI="on", **API_KEYS) as fleet:
        closed = Page(browser, fleet.gateway().url).open()
        closed.shows("#credentials-button", "Sign in")
        closed.focuses("Token or key")
        for size, dark in ((WIDE, False), (WIDE, True), (NARROW, False), (NARROW, True)):
            closed.shape(size, dark=dark)
            if folder := os.environ.get("SCREENSHOTS"):
                browser.save_screenshot(str(Path(folder) / f"sign-in-{size[0]}-{'dark' if dark else 'light'}.png"))
            assert violations(browser) == []
        closed.console()


def test_the_titles_of_tasks_have_room_in_each_window(page: Page, scene: Scene) -> None:
    scene.begin("ask", LONG, until="INPUT_REQUIRED")
    scene.begin("fails", LONG, until="FAILED")
    page.open("#view=tasks")
    page.until(lambda: page.all("#view .task-title"), "the tasks")
    for width in (1400, 1200, 1199, 1000, 999, 700, 699, 360):
        page.shape((width, 900))
        if folder := os.environ.get("SCREENSHOTS"):
            page.browser.save_screenshot(str(Path(folder) / f"titles-{width}.png"))
        narrower = page.script(NARROW_LINES)
        least = min(title.size["width"] for title in page.all("#view .task-title"))
        sideways = page.script(SIDEWAYS)
        assert (least >= 170, page.script(CUT_OFF_CELLS), sideways) == (True, [], []), (width, least)
        assert narrower == [] or width < 1200, "a line is cut although its column has room"
