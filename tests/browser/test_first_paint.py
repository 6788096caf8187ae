"""Cost of the first view with 10,000 tasks. The numbers of requests and bytes do not depend on the number of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from selenium import webdriver

from a2a_celery.lifecycle.references import Scope
from a2a_celery.store import AsyncStore, Keys
from tests.support.clients.browser import Page
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.store.seeds import Seeds

TASKS = 10_000
BATCH = 500
MAX_FILES = 45
MAX_FILE_BYTES = 200_000
MAX_DATA_BYTES = 120_000

VIEWS = {
    "overview": ("#view=overview", "#view .tiles", "10,000"),
    "all tasks": ("#view=tasks", "#view tbody", "ask"),
    "open tasks": ("#view=tasks&phase=queued", "#view tbody", "ask"),
    "an agent": ("#card=/agents/ask/.well-known/agent-card.json", "#tasks .groups", "Submitted"),
}
"""Address of each view, with the selector and a text of an element that shows data of the tasks."""

LOADED = """
return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .map(one => [new URL(one.name).pathname, one.encodedBodySize]);
"""
"""Script that returns the paths and sizes of the responses in the order of their requests."""

INTERVALS = """
const overviews = performance.getEntriesByType('resource').filter(({ name }) => name.endsWith('/operator/v1/overview'));
return overviews.slice(1).map(({ startTime }, i) => startTime - overviews[i].responseEnd);
"""
"""Script that returns the milliseconds from each response with an overview to the next request."""

REFRESH = 5000
"""Interval of the page's requests for the overview, in milliseconds."""

AGENTS = "return fetch('agents.json').then(answer => answer.json()).then(({ agents }) => agents.length)"


def paths(page: Page) -> list[str]:
    """Return the paths of the responses that the page has received, in the order of their requests."""
    return [path for path, _ in page.script(LOADED)]


def cards(page: Page) -> list[str]:
    """Return the paths of the cards that the page has read."""
    return [path for path in paths(page) if path.endswith("agent-card.json")]


async def seed(url: str) -> None:
    """Create tasks that no worker executes."""
    store = AsyncStore(url)
    seeds = Seeds(store, Keys())
    for _ in range(TASKS // BATCH):
        await asyncio.gather(*(seeds.create_task(Scope(agent="ask")) for _ in range(BATCH)))
    await store.aclose()


@pytest.fixture(scope="module")
def fleet_and_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    """Fleet and gateway with many tasks, without workers."""
    folder = tmp_path_factory.mktemp("fleet")
    with running_fleet(folder, app="tests.support.agents.page_agents", A2A_UI="on", A2A_OPERATORS="*") as fleet:
        gateway = fleet.gateway()
        asyncio.run(seed(fleet.redis.store_url))
        yield fleet, gateway


@pytest.mark.parametrize(("address", "css", "text"), VIEWS.values(), ids=VIEWS)
def test_the_first_view_is_small(
    browser: webdriver.Chrome, fleet_and_gateway: tuple[Fleet, Gateway], address: str, css: str, text: str
) -> None:
    page = Page(browser, fleet_and_gateway[1].url)
    page.open(address)
    page.shows(css, text)

    agents = page.script(AGENTS)
    page.until(lambda: len(cards(page)) == agents, "all cards are read")
    load_times = page.script(LOADED)
    files = [
        size
        for path, size in load_times
        if path.startswith("/ui/") and path not in ("/ui/agents.json", "/ui/inbox.json")
    ]
    data = {path: size for path, size in load_times if not path.startswith("/ui/") and path not in cards(page)}
    assert len(files) <= MAX_FILES
    assert sum(files) <= MAX_FILE_BYTES
    assert sum(data.values()) <= MAX_DATA_BYTES, data


@pytest.mark.parametrize(("view", "path"), [("overview", "/operator/v1/overview"), ("tasks", "/operator/v1/tasks")])
def test_the_data_of_a_view_is_requested_before_the_cards(
    browser: webdriver.Chrome, fleet_and_gateway: tuple[Fleet, Gateway], view: str, path: str
) -> None:
    page = Page(browser, fleet_and_gateway[1].url)
    page.open(f"#view={view}")
    page.until(lambda: cards(page) and path in paths(page), "a card and the data are read")

    assert path in paths(page)[: paths(page).index(cards(page)[0])]


def test_the_overview_is_requested_once_in_each_interval(
    browser: webdriver.Chrome, fleet_and_gateway: tuple[Fleet, Gateway]
) -> None:
    page = Page(browser, fleet_and_gateway[1].url)
    page.open("#view=overview")
    page.until(lambda: page.script(INTERVALS), "the overview is requested again")

    assert min(page.script(INTERVALS)) >= REFRESH


def test_the_browser_requests_no_script_of_the_page_again(
    browser: webdriver.Chrome, fleet_and_gateway: tuple[Fleet, Gateway]
) -> None:
    page = Page(browser, fleet_and_gateway[1].url)
    for _ in range(2):
        page.open()
        page.element("#agents .list")

    transfer_size = page.script(
        "return performance.getEntriesByType('resource').filter(one => /\\.(js|css)$/.test(one.name))"
        ".map(one => one.transferSize)"
    )
    assert transfer_size
    assert set(transfer_size) == {0}
