"""Cost of the first view with 10,000 tasks: the numbers of requests and bytes do not depend on the number of tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from selenium import webdriver

from a2a_celery.store import AsyncStore, Keys, Scope
from tests.support.browser import Page
from tests.support.fleet import Fleet, Gateway, running_fleet
from tests.support.seeds import Seeds

TASKS = 10_000
BATCH = 500
MAX_FILES = 45
MAX_FILE_BYTES = 200_000
MAX_DATA_BYTES = 120_000

VIEWS = {
    "overview": ("#view=overview", "#view .tiles", "10,000"),
    "open tasks": ("#view=tasks&phase=queued", "#view tbody", "ask"),
    "an agent": ("#card=/agents/ask/.well-known/agent-card.json", "#tasks .groups", "Submitted"),
}
"""Address of each view, and an element with a text that is shown with the data of the tasks."""

LOADED = """
return [...performance.getEntriesByType('navigation'), ...performance.getEntriesByType('resource')]
  .map(one => [new URL(one.name).pathname, one.encodedBodySize]);
"""


AGENTS = "return fetch('agents.json').then(answer => answer.json()).then(({ agents }) => agents.length)"


def cards(page: Page) -> list[str]:
    """Return the paths of the cards that the page has read."""
    return [path for path, _ in page.script(LOADED) if path.endswith("agent-card.json")]


async def seed(url: str) -> None:
    """Create tasks that no worker executes."""
    store = AsyncStore(url)
    seeds = Seeds(store, Keys())
    for _ in range(TASKS // BATCH):
        await asyncio.gather(*(seeds.created(Scope(agent="ask")) for _ in range(BATCH)))
    await store.aclose()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    """Fleet and gateway with many tasks, without workers."""
    folder = tmp_path_factory.mktemp("fleet")
    with running_fleet(folder, app="tests.support.page_agents", A2A_UI="on", A2A_OPERATORS="*") as fleet:
        gateway = fleet.gateway()
        asyncio.run(seed(fleet.redis.store_url))
        yield fleet, gateway


@pytest.mark.parametrize(("address", "css", "text"), VIEWS.values(), ids=VIEWS)
def test_the_first_view_is_small(
    browser: webdriver.Chrome, served: tuple[Fleet, Gateway], address: str, css: str, text: str
) -> None:
    page = Page(browser, served[1].url)
    page.open(address)
    page.shows(css, text)

    agents = page.script(AGENTS)
    page.until(lambda: len(cards(page)) == agents, "all cards are read")
    loaded = page.script(LOADED)
    files = [size for path, size in loaded if path.startswith("/ui/") and path != "/ui/agents.json"]
    data = {path: size for path, size in loaded if not path.startswith("/ui/") and path not in cards(page)}
    assert len(files) <= MAX_FILES
    assert sum(files) <= MAX_FILE_BYTES
    assert sum(data.values()) <= MAX_DATA_BYTES, data
