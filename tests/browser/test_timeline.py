"""Timeline of a task with two runs, waits and recorded calls."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from time import time_ns

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from a2a_celery.lifecycle.execution import Activity, ExecutionState, Transition
from a2a_celery.lifecycle.own_metadata import suspension_metadata
from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import WORKING
from a2a_celery.store import AsyncStore
from a2a_celery.store import Keys as StoreKeys
from tests.browser.test_views import Scene, rows
from tests.support.clients.accessibility import violations
from tests.support.clients.bindings import message_json
from tests.support.clients.browser import NARROW, WIDE, Page
from tests.support.processes.fleet import running_fleet
from tests.support.receivers.receiver import receiver
from tests.support.store.seeds import Seeds, chunk, status
from tests.support.store.suspensions import Suspensions, wait_for


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Fleet in which all callers are operators."""
    folder = tmp_path_factory.mktemp("fleet")
    env = {"A2A_UI": "on", "A2A_OPERATORS": "*"}
    with receiver() as hooks, running_fleet(folder, app="tests.support.agents.page_agents", **env) as fleet:
        fleet.worker(pool="threads", concurrency=8)
        yield Scene(fleet, fleet.gateway(), hooks)


@pytest.fixture(scope="module")
def task(scene: Scene) -> str:
    """Task that was retried once, and asks a question."""
    task = scene.send("plans", "Rome")
    scene.wait_for("plans", task, "TASK_STATE_INPUT_REQUIRED")
    return task


@pytest.fixture
def page_url(scene: Scene) -> str:
    return scene.gateway.url


def test_a_timeline_shows_waits_and_recorded_steps(page: Page, scene: Scene, task: str) -> None:
    page.open(f"#view=task&id={task}")
    page.until(lambda: len(page.all("#view .run")) == 5, "the runs and waits")

    names = page.texts("#view .run-name")
    assert names == [
        "Waited for a worker", "Run 1, attempt 1", "Delay of the next attempt", "Run 1, attempt 1, retry 1",
        "Waits for an answer",
    ]  # fmt: skip
    links = page.all("#view .run a")
    [worker] = httpx.get(f"{scene.gateway.url}/operator/v1/workers").json()["workers"]
    assert [link.text for link in links] == [worker["name"]] * 2
    assert {str(link.get_attribute("href")).partition("#")[2] for link in links} == {"view=workers"}
    page.until(lambda: len(rows(page)) == 9, "the rows of the table")
    found = rows(page)
    assert re.match(r'search #1 \["<Turn>","Rome"\] \+ .* 1 3\.2 kB recorded$', found[2]), found
    assert [row.split(" +")[0] for row in found[3:5]] == ["Model call some-model", "Tool call hotels"]
    assert re.match(r'rate #1 \[\["Rome 0",.* 2 \d bytes recorded$', found[7]), found
    displays = page.script(
        "return [...document.querySelectorAll('#view td')].map(one => getComputedStyle(one).display)"
    )
    assert set(displays) == {"table-cell"}, "a rule for another element applies to the cells"
    levels = page.script("return [...document.querySelectorAll('.step-name')].map(name => name.dataset.level)")
    assert levels == ["0", "0", "1", "2", "2", "0", "0", "1", "0"]

    page.expand("#view .recorded-result details")
    page.shows("#view .recorded-result .hint", "Cut after 2.0 kB")
    assert "Rome 1" in page.text("#view .recorded-result pre")


def test_the_runs_of_a_timeline_are_compared(page: Page, task: str) -> None:
    page.open(f"#view=task&id={task}")
    page.shows("#view .switch", "Compare runs")

    page.tab_to("Compare runs")
    page.press(Keys.ENTER)

    page.until(
        lambda: page.texts("#view .run-name") == ["Run 1, attempt 1", "Run 1, attempt 1, retry 1"], "only the runs"
    )
    first, second = page.texts("#view .run .hint")
    assert "1 recorded, 0 from earlier runs" in first
    assert "Failed: retried" in first
    assert "1 recorded, 1 from earlier runs" in second
    starts = page.script(
        "return [...document.querySelectorAll('.run')].map(run => run.querySelector('.segment').style.insetInlineStart)"
    )
    assert [start.startswith("min(0%") for start in starts] == [True, True]
    assert page.texts("#view .key") == ["Running", "Model call", "Tool call", "Recorded call"]


@pytest.mark.parametrize("size", [WIDE, NARROW])
@pytest.mark.parametrize("dark", [False, True])
def test_a_timeline_is_accessible_and_fits_the_window(page: Page, task: str, size: tuple[int, int], dark: bool) -> None:
    page.shape(size, dark=dark)
    page.open(f"#view=task&id={task}")
    page.expand("#view .recorded-result details")
    page.element("#view .recorded-result pre")

    assert violations(page.browser) == []
    assert page.script("return document.documentElement.scrollWidth <= innerWidth")


def test_a_signal_and_its_timeout_are_shown(page: Page, scene: Scene) -> None:
    task = scene.send("plans", "Oslo")
    scene.wait_for("plans", task, "TASK_STATE_INPUT_REQUIRED")
    message = message_json("Oslo 1")
    message["message"] |= {"taskId": task}
    url = f"{scene.gateway.url}/agents/plans/message:send"
    httpx.post(url, json=message | {"configuration": {"returnImmediately": True}}, headers={"A2A-Version": "1.0"})
    page.open(f"#view=task&id={task}")

    page.shows("#view .run.wait:last-child", "Waits for the signal approval")
    assert "so far, at most 1 h" in page.text("#view .run.wait:last-child")


def seed(scene: Scene, create: Callable[[Seeds], Awaitable[str]]) -> str:
    """Create a task in the store of the fleet."""

    async def create_and_close() -> str:
        seeds = Seeds(AsyncStore(scene.fleet.redis.store_url), StoreKeys())
        try:
            return await create(seeds)
        finally:
            await seeds.store.aclose()

    return asyncio.run(create_and_close())


async def lost_run(seeds: Seeds) -> str:
    """Create a task whose first run has lost its worker, and whose second run starts 100 ms after the recovery."""
    claim = await seeds.claim_run(scope=Scope(agent="patient"), max_attempts=3)
    start = Transition(1, ExecutionState.IDLE, ExecutionState.INITIALIZING, time_ns() // 1000)
    await seeds.append_events(claim, Activity(1, 1, "runner", start))
    await seeds.recover_run(claim.ref)
    claim = await seeds.claim_run(claim.ref.task_id, run=2, max_attempts=3)
    later = replace(start, at_us=time_ns() // 1000 + 100_000)
    await seeds.append_events(claim, Activity(2, 2, "runner", later), chunk("x"))
    return claim.ref.task_id


async def signaled_run(seeds: Seeds) -> str:
    """Create a task that has received the signal for which it waits, and that no worker has claimed since."""
    claim = await seeds.claim_run(scope=Scope(agent="approval"))
    suspensions = Suspensions(seeds)
    await suspensions.suspend_run(claim, wait_for("go"), status(WORKING, **suspension_metadata("", "go")))
    await suspensions.send_signal(claim.ref.task_id, "go")
    return claim.ref.task_id


def test_a_lost_run_ends_before_the_wait_for_the_next_worker(page: Page, scene: Scene) -> None:
    task = seed(scene, lost_run)
    page.open(f"#view=task&id={task}")
    page.until(lambda: len(page.all("#view .run")) == 4, "the runs and waits")

    assert page.texts("#view .run-name") == [
        "Waited for a worker", "Run 1, attempt 1", "Waited for a worker", "Run 2, attempt 2",
    ]  # fmt: skip
    assert "The worker was lost" in page.texts("#view .run .hint")[1]
    ends, starts = page.script(
        "const boxes = [...document.querySelectorAll('.run .segment')].map(each => each.getBoundingClientRect());"
        "return [boxes.map(({ right }) => right), boxes.map(({ left }) => left)]"
    )
    assert ends[1] <= starts[2] + 4, "the bars overlap"
    descriptions = page.texts("#view .timeline .description")
    assert any(text.startswith("Working · attempt 2 of 3 · The worker was lost") for text in descriptions), descriptions


def test_a_run_that_has_its_signal_waits_for_a_worker(page: Page, scene: Scene) -> None:
    task = seed(scene, signaled_run)
    page.open(f"#view=task&id={task}")

    page.shows("#view .run.wait:last-child", "Waits for a worker")
    assert "Waited for the signal go" in page.texts("#view .run-name")


def test_a_long_timeline_is_shown_in_parts(page: Page, scene: Scene) -> None:
    task = scene.send("many_calls", "150")
    scene.wait_for("many_calls", task, "TASK_STATE_COMPLETED")
    page.open(f"#view=task&id={task}")
    page.until(lambda: len(rows(page)) == 100, "the first rows")

    page.element("#view section > p > button").click()

    page.until(lambda: len(rows(page)) > 140, "all rows")
    assert not page.all("#view section > p > button")
