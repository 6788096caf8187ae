"""Views of the page other than agents and tasks: the inbox, and the operators' views and actions."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import astuple, replace
from pathlib import Path
from time import time_ns
from urllib.parse import urlencode

import httpx
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from a2a_celery.features.schedules.section import Tick
from a2a_celery.features.webhooks.deliveries import delivery_metrics
from a2a_celery.lifecycle.references import Scope
from a2a_celery.store import AsyncStore
from a2a_celery.store import Keys as StoreKeys
from a2a_celery.store.admin.metrics import read_metrics
from a2a_celery.store.admin.samples import SERIES, Sample
from a2a_celery.store.runs.recovery import lapsed_runs
from tests.support.agents.page_agents import MARK
from tests.support.clients.accessibility import violations
from tests.support.clients.bindings import message_json, rpc
from tests.support.clients.browser import NARROW, WIDE, Page
from tests.support.clients.credentials import api_key_entry
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.receivers.posts import DELIVERING
from tests.support.receivers.receiver import Receiver, receiver
from tests.support.store.seeds import Seeds
from tests.support.waiting import LIMIT, eventually

from .test_page import LONG

VIEWS = {
    "agents": "",
    "inbox": "#view=inbox",
    "overview": "#view=overview",
    "tasks": "#view=tasks&phase=paused",
    "dead": "#view=dead",
    "webhooks": "#view=webhooks",
    "workers": "#view=workers",
    "schedules": "#view=schedules",
}
ADDRESSES = {
    **VIEWS,
    "all tasks": "#view=tasks",
    "no tasks": "#view=tasks&owner=nobody",
    "tasks of a schedule": "#view=tasks&schedule=nightly+report",
    "unknown task": "#view=task&id=nothing-of-that-name",
}
"""Addresses of the views, with their empty states and an error."""


SHOWN = "#view article, #view tbody tr, #view .run, #view .empty, #view .ticks li, #view .problem"
"""Selector of elements that a view shows when it has loaded its data, or failed to load it."""

LINK_IS_VISIBLE = """
const box = document.querySelector('#views [aria-current]').getBoundingClientRect();
const list = document.querySelector('#views ul').getBoundingClientRect();
return box.left >= list.left - 1 && box.right <= list.right + 1;
"""
"""Script that returns True if the link of the current view is inside the list of links, also if the list scrolls."""

POSTS = "#view .charts figure:nth-child(5) .legend"
"""Selector of the legend of the chart "Posts to webhooks"."""

POINTS_AND_LINES = """
const chart = document.querySelector('#view .charts figure:nth-child(4) .chart');
const path = (kind) => chart.querySelector(kind).getAttribute('d');
const starts = (kind) => [...path(kind).matchAll(/M([\\d.]+)/g)].map(([, x]) => Number(x));
return [starts('.point'), starts('.line')];
"""
"""Script that returns where the points and the lines of the chart "Open runs" begin, from 0 to 300."""

CUT_OFF_CELLS = """
return [...document.querySelectorAll('#view td > *')].filter(one => one.checkVisibility())
  .filter(one => one.getBoundingClientRect().right > one.closest('table').getBoundingClientRect().right + 1)
  .map(one => one.innerText)
"""
"""Script that returns the texts of the cells that end outside of their table."""

COMPLETED = """
const row = [...document.querySelectorAll('#view tbody tr')].find(row => row.cells[0].innerText === arguments[0]);
return row.querySelector('[data-label="Completed"]').innerText;
"""


class Scene:
    """Fleet with dead letters and a schedule, to which the tests add tasks and webhooks."""

    def __init__(self, fleet: Fleet, gateway: Gateway, hooks: Receiver) -> None:
        self.fleet, self.gateway, self.hooks = fleet, gateway, hooks
        self.scheduled = ""
        self.lost: list[str] = []

    def send(self, agent: str, text: str, hook: str = "", metadata: dict[str, str] | None = None) -> str:
        """Send a message, and return the id of its task."""
        configuration: dict[str, object] = {"returnImmediately": True}
        if hook:
            configuration["taskPushNotificationConfig"] = {"id": "my-hook", "url": self.hooks.url(hook)}
        body = message_json(text) | {"configuration": configuration}
        body["message"]["metadata"] = metadata or {}
        url = f"{self.gateway.url}/agents/{agent}/message:send"
        answer = httpx.post(url, json=body, headers={"A2A-Version": "1.0"}, timeout=LIMIT)
        return str(answer.json()["task"]["id"])

    def state(self, agent: str, task_id: str) -> str:
        url = f"{self.gateway.url}/agents/{agent}/tasks/{task_id}"
        answer = httpx.get(url, headers={"A2A-Version": "1.0"}, timeout=LIMIT)
        return str(answer.json()["status"]["state"])

    def cancel(self, agent: str, task_id: str) -> None:
        url = f"{self.gateway.url}/agents/{agent}/tasks/{task_id}:cancel"
        httpx.post(url, headers={"A2A-Version": "1.0"}, json={}, timeout=LIMIT)

    def wait_for(self, agent: str, task_id: str, state: str) -> None:
        eventually(lambda: self.state(agent, task_id) == state, what=f"task {task_id} is {state}")

    def lose(self, *texts: str) -> list[str]:
        """Kill a worker while it works on messages to the agent patient, and return the ids of the dead letters."""
        worker = self.fleet.worker(pool="threads", concurrency=8)
        tasks = [self.send("patient", text) for text in texts]
        for task in tasks:
            self.wait_for("patient", task, "TASK_STATE_WORKING")
        worker.kill()
        for task in tasks:
            self.wait_for("patient", task, "TASK_STATE_FAILED")
        return tasks


async def tick(store_url: str) -> str:
    """Start a task of the schedule and skip its next tick, as a worker does for Celery beat. Return the task's id."""
    seeds = Seeds(AsyncStore(store_url), StoreKeys())
    first = Tick("nightly report", time_ns() // 1000)
    await seeds.create_scheduled_task(first, Scope(agent="patient"))
    await seeds.create_scheduled_task(replace(first, at_us=first.at_us + 60_000_000), Scope(agent="patient"))
    await seeds.store.aclose()
    return first.task_id(seeds.keys)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Scene of a fleet in which all callers are operators, with one lost worker and one running worker."""
    folder = tmp_path_factory.mktemp("fleet")
    env = {"A2A_UI": "on", "A2A_OPERATORS": "*", **DELIVERING}
    with receiver() as hooks, running_fleet(folder, app="tests.support.agents.page_agents", **env) as fleet:
        fleet.watcher()
        scene = Scene(fleet, fleet.gateway(), hooks)
        scene.lost = scene.lose("first", "second", "third")
        scene.scheduled = asyncio.run(tick(fleet.redis.store_url))
        fleet.worker(pool="threads", concurrency=8)
        yield scene


@pytest.fixture
def page_url(scene: Scene) -> str:
    return scene.gateway.url


def rows(page: Page) -> list[str]:
    """Return the texts of the rows of the visible tables."""
    return [" ".join(text.split()) for text in page.texts("#view tbody tr")]


def has_rows(page: Page, *tasks: str) -> bool:
    """Return True if the visible table has a row for each of `tasks`."""
    return all(any(task in row for row in rows(page)) for task in tasks)


def count_completed(page: Page, agent: str) -> int:
    """Return the number of completed tasks of an agent in the overview."""
    return int(page.script(COMPLETED, agent))


def test_the_overview_counts_and_draws_what_ends(page: Page, scene: Scene) -> None:
    page.open("#view=overview")
    page.shows("#view .tiles", "Dead letters")
    tiles = dict(zip(page.texts("#view .tile dt"), page.texts("#view .tile dd strong"), strict=True))
    assert int(tiles["Dead letters"]) > 0
    page.until(lambda: rows(page), "the agents")
    completions_before = count_completed(page, "count")

    for _ in range(3):
        scene.send("count", "5")

    page.until(lambda: "/min" in page.text("#view .charts figure"), "a rate")
    label = str(page.element("#view .charts svg").get_attribute("aria-label"))
    assert label.startswith("Ended tasks: all ")
    page.until(lambda: page.element("#view .chart .line").get_attribute("d"), "a line")
    page.until(lambda: count_completed(page, "count") == completions_before + 3, "the agent's counts")


async def record_past_samples(store_url: str, *, numbers: Sequence[int] = ()) -> None:
    """Replace the recorded samples by samples of a fleet that ran for a day. Its store was emptied 20 minutes ago.

    Args:
        store_url: URL of the store.
        numbers: Positions of the recorded samples from the newest, or () for all samples.
    """
    store, keys = AsyncStore(store_url), StoreKeys()
    reading = Sample.of(await store.run(read_metrics(keys)), (await store.run(delivery_metrics(keys))).posts, None)
    now_us = (await store.run(lapsed_runs(keys, limit=1))).time_us
    for series in SERIES:
        name = keys.samples(series.name)
        await store.redis.delete(name)
        for number in numbers or range(series.limit - 1):  # newest first
            seconds = (number + 0.5) * series.interval
            before = seconds > 20 * 60
            ended = (90_000 - 30 * number, 5, 0, 0) if before else (0, 0, 0, 0)
            run = (*ended[:1], *reading.run[1:]) if before else (0,) * len(reading.run)
            text = json.dumps(astuple(replace(reading, ended=ended, run=run, queue=run)))
            await store.redis.rpush(name, f"{now_us - int(seconds * 1e6)} {text}")
    await store.aclose()


def test_the_charts_have_the_recorded_hour_and_day_when_the_page_is_opened(page: Page, scene: Scene) -> None:
    asyncio.run(record_past_samples(scene.fleet.redis.store_url))

    page.open("#view=overview")

    page.shows("#view .charts figure", "highest 30/min")  # the tasks of the emptied store count for no rate
    figure = page.text("#view .charts figure")
    assert "last 60 min" in figure
    assert all("–" not in text.split("\n")[1] for text in page.texts("#view .charts .legend")[:1]), figure
    line = page.element("#view .chart .line").get_attribute("d")
    assert line.count("M") == 2, "the line is interrupted where the store was emptied"
    page.shows("#view .charts + .hint", "Each point covers about a minute.")

    page.element("#view .tabs a[href$=day]").click()

    page.until(lambda: "last 24 h" in page.text("#view .charts figure"), "the recorded day")
    page.shows("#view .charts + .hint", "Each point covers about 15 minutes.")
    page.open("".join(page.browser.current_url.partition("#")[1:]))
    page.until(lambda: "last 24 h" in page.text("#view .charts figure"), "the day at its address")
    assert page.text("#view .tabs [aria-current]") == "Day"


@pytest.mark.parametrize("name", ["hour", "day"])
def test_the_axis_of_a_chart_spans_its_range(page: Page, scene: Scene, name: str) -> None:
    asyncio.run(record_past_samples(scene.fleet.redis.store_url, numbers=[5, 6, 20, 40, 41]))

    page.open(f"#view=overview&range={name}")

    span = {"hour": "last 60 min", "day": "last 24 h"}[name]
    page.until(lambda: page.texts("#view .charts figcaption ~ .head .hint")[0] == span, "the whole range")
    page.until(lambda: len(page.script(POINTS_AND_LINES)[1]) >= 2, "the recorded samples")
    points, lines = page.script(POINTS_AND_LINES)
    intervals = {"hour": 60, "day": 96}[name]
    assert lines[0] == pytest.approx(300 * (1 - 41.5 / intervals), abs=8)
    assert points[0] == pytest.approx(300 * (1 - 20.5 / intervals), abs=8), "a single sample"


def test_without_samples_the_charts_have_totals_and_say_why(page: Page, scene: Scene) -> None:
    async def remove_samples() -> None:
        store = AsyncStore(scene.fleet.redis.store_url)
        await store.redis.delete(*(StoreKeys().samples(series.name) for series in SERIES))
        await store.aclose()

    asyncio.run(remove_samples())

    page.open("#view=overview&range=half-hour")

    page.shows("#view .charts + .hint", "No samples are recorded yet.")
    page.until(lambda: "since the store was created" in page.texts("#view .charts figure")[1], "the total of run times")
    assert "–" not in page.texts("#view .charts figure")[1]


def test_open_tasks_are_listed_by_phase_searched_and_opened(page: Page, scene: Scene) -> None:
    task, other = scene.send("patient", "work"), scene.send("ask", "begin")
    scene.wait_for("ask", other, "TASK_STATE_INPUT_REQUIRED")
    page.open("#view=tasks&phase=running")
    page.until(lambda: any(task in row and "Working" in row for row in rows(page)), "the running task")
    assert not any(other in row for row in rows(page))

    page.element("#fleet-search").send_keys("no such thing")
    page.until(lambda: rows(page) == [], "the search")
    page.element("#fleet-search").clear()
    page.element("#fleet-search").send_keys("patient")
    page.until(lambda: any(task in row for row in rows(page)), "the search finds it")

    [paused_tab] = [tab for tab in page.all("#view .tabs a") if tab.text == "Need a person"]
    paused_tab.click()
    page.element("#fleet-search").clear()
    page.element("#fleet-search").send_keys("ask")
    page.until(lambda: any(other in row and "Needs an answer" in row for row in rows(page)), "the paused task")
    page.element("#fleet-search").clear()
    page.element("#fleet-search").send_keys(task, Keys.ENTER)
    page.shows("#view .facts-list", task)
    for agent, expected_task in (("patient", task), ("ask", other)):
        scene.cancel(agent, expected_task)


def test_all_tasks_are_filtered_by_an_address_that_can_be_shared(page: Page, scene: Scene) -> None:
    ended_task, other = scene.send("count", "5"), scene.send("ask", "begin")
    scene.wait_for("count", ended_task, "TASK_STATE_COMPLETED")
    page.open("#view=tasks")
    assert page.element("#view .tabs a[aria-current]").text == "All"
    page.until(lambda: has_rows(page, ended_task, other), "open and ended tasks")

    page.element("#filter-agent").send_keys("count")
    page.element("#filter-state").send_keys("Completed")
    page.element("#filter-agent").submit()

    page.until(lambda: rows(page) and all("count" in row and "Completed" in row for row in rows(page)), "the filters")
    assert "agent=count&state=TASK_STATE_COMPLETED" in page.browser.current_url
    page.element("#fleet-search").send_keys(ended_task)
    page.until(lambda: len(rows(page)) == 1, "the search")
    address = f"#{page.browser.current_url.partition('#')[2]}"
    page.open("#view=overview")
    page.open(address)
    page.until(lambda: len(rows(page)) == 1 and has_rows(page, ended_task), "the shared list")
    assert page.element("#filter-state").get_attribute("value") == "TASK_STATE_COMPLETED"
    page.element("#fleet-search").clear()
    page.element("#filter-owner").send_keys("nobody", Keys.ENTER)
    page.until(lambda: rows(page) == [], "an owner without tasks")
    page.element("#filter-schedule").send_keys("nightly report", Keys.ENTER)
    page.shows("#view .problem", "Leave it out, or leave out the schedule")
    scene.cancel("ask", other)


def test_all_tasks_are_filtered_by_time(page: Page, scene: Scene) -> None:
    task = scene.send("count", "5")
    scene.wait_for("count", task, "TASK_STATE_COMPLETED")
    page.open("#view=tasks&after=2030-01-01T00:00:00Z")
    page.shows("#view .empty", "No stored task matches")
    assert (
        page.script("return new Date(document.querySelector('#filter-after').value).toISOString()")
        == "2030-01-01T00:00:00.000Z"
    )

    page.script("document.querySelector('#filter-after').value = '2026-01-01T00:00'")
    page.element("#filter-after").submit()

    page.until(lambda: has_rows(page, task), "the task")


def test_failed_tasks_have_a_reason_and_link_to_their_dead_letter(page: Page, scene: Scene) -> None:
    task = scene.send("fails", "x")
    scene.wait_for("fails", task, "TASK_STATE_FAILED")
    page.open("#view=tasks&phase=failed")
    page.until(lambda: has_rows(page, task, *scene.lost), "the failed tasks")
    assert any(re.search(r"Failed Exception [0-9a-f]{12}\b", row) for row in rows(page)), rows(page)

    page.element("#fleet-search").send_keys("Worker lost")

    page.until(lambda: rows(page) and all("Failed Worker lost" in row for row in rows(page)), "the search")
    page.element("#view td .reason a").click()
    page.shows("#view h2", "Timeline")


def test_a_schedule_is_shown_with_its_tasks_and_skipped_ticks(page: Page, scene: Scene) -> None:
    page.open("#view=schedules")
    page.until(lambda: rows(page), "the schedule")
    [row] = rows(page)
    assert row.startswith("nightly report 0 2 * * * patient – Skips ticks")

    page.element("#view tbody a").click()

    page.until(lambda: len(rows(page)) == 1 and has_rows(page, scene.scheduled), "the task of the schedule")
    page.shows("#view section.card", "Skipped ticks")
    assert len(page.all("#view .ticks li")) == 1
    assert page.element("#filter-schedule").get_attribute("value") == "nightly report"


def test_a_list_of_open_tasks_follows_the_fleet(page: Page, scene: Scene) -> None:
    page.open("#view=tasks&phase=paused")
    page.shows("#view [role=status]", "Tasks that wait for an answer")
    task = scene.send("ask", "begin")
    page.until(lambda: any(task in row for row in rows(page)), "a new task")

    scene.cancel("ask", task)

    page.until(lambda: not any(task in row for row in rows(page)), "the task has ended")


def test_a_dead_letter_is_requeued(page: Page, scene: Scene) -> None:
    page.open("#view=dead")
    page.until(lambda: len(rows(page)) >= 3, "the dead letters")
    rows_before = rows(page)
    assert sorted(page.texts("#view .task-title a")) == ["first", "second", "third"]
    assert all(" patient – Worker lost " in row and " 1 of 1 " in row for row in rows_before), rows_before
    [dead] = [task for task in scene.lost if task in rows_before[0]]
    assert page.text("#views a[href='#view=dead'] .count").startswith(str(len(rows_before)))

    page.element("#view tbody button").click()
    page.element("dialog [type=submit]").click()

    page.shows("#view .result", "Requeued as")
    assert not any(dead in row for row in rows(page))
    new = page.element("#view .result a").text
    scene.wait_for("patient", new, "TASK_STATE_WORKING")
    page.element("#view .result a").click()
    page.shows("#view .facts-list", new)
    scene.cancel("patient", new)


def test_a_webhook_that_was_given_up_is_counted_and_replayed(page: Page, scene: Scene) -> None:
    page.open("#view=overview")
    page.until(lambda: "–" not in page.text(POSTS), "rates of an interval without a post")
    scene.hooks.plan("/gone", [410])
    task = scene.send("count", "3", "/gone")
    page.until(lambda: re.search(r"given up\n0\.[1-9]|given up\n[1-9]", page.text(POSTS)), "the rate of given-up posts")
    page.open("#view=webhooks")
    page.until(lambda: any(task in row and "Given up" in row and "410" in row for row in rows(page)), "it is given up")

    page.element(f"#view button[aria-label*='{task}']").click()
    page.element("dialog [type=submit]").click()

    page.until(lambda: not any(task in row for row in rows(page)), "it is delivered")
    scene.hooks.wait_for("/gone", 2)


def test_workers_watchers_and_queues_are_listed(page: Page) -> None:
    page.open("#view=workers")
    page.until(lambda: any("threads" in row and "Replies" in row for row in rows(page)), "the worker")
    assert any(row.startswith("echo ") and "1 worker" in row for row in rows(page))
    assert "No watcher" not in page.text("#view")


def test_a_timeline_shows_runs_events_and_deliveries(page: Page, scene: Scene) -> None:
    task = scene.send("count", "5", "/line")
    scene.wait_for("count", task, "TASK_STATE_COMPLETED")
    page.open(f"#view=task&id={task}")

    page.shows("#view .line-up .badge", "Completed")
    page.shows("#view .runs", "Run 1, attempt 1")
    page.until(lambda: "Delivered" in page.text("#view .timeline"), "the deliveries")
    lines = page.text("#view .timeline")
    for text in (
        "Submitted · #1",
        "Working · #2",
        "Artifact response, 6 chunks, ",
        "Completed · #",
        "Running · ",
        "Webhook my-hook",
    ):
        assert text in lines, text
    page.element("#view .links a").click()
    page.shows("#task .ids", task)


def test_a_timeline_shows_the_run_of_a_lost_worker_until_the_end_of_the_task(page: Page, scene: Scene) -> None:
    page.open(f"#view=task&id={scene.lost[0]}")
    page.shows("#view .runs", "Run 1, attempt 1")

    assert "The worker was lost" in page.text("#view .timeline")
    widths = (
        "const of = css => document.querySelector(css).offsetWidth; return [of('.run:not(.wait) .segment'), of('.bar')]"
    )
    segment, bar = page.script(widths)
    assert segment > bar / 2


def test_a_timeline_links_to_parent_and_children(page: Page, scene: Scene) -> None:
    parent = scene.send("ask", "begin")
    scene.wait_for("ask", parent, "TASK_STATE_INPUT_REQUIRED")
    child = scene.send("echo", "child", metadata={"a2a_celery/parentTaskId": parent})
    page.open(f"#view=task&id={parent}")
    page.shows("#view .relatives li", "Child")

    page.element("#view .relatives a").click()

    page.shows("#view .facts-list", child)
    page.shows("#view .relatives li", "Parent")
    scene.cancel("ask", parent)


def test_a_timeline_of_an_unknown_task_says_so(page: Page) -> None:
    page.open("#view=task&id=nothing-of-that-name")
    page.shows("#view [role=status]", "This task does not exist")


def test_names_that_clients_choose_are_shown_as_text(page: Page, scene: Scene) -> None:
    scene.hooks.plan("/marked", [410])
    params = message_json("begin") | {
        "tenant": MARK,
        "configuration": {
            "returnImmediately": True,
            "taskPushNotificationConfig": {"id": MARK, "url": scene.hooks.url("/marked")},
        },
    }
    params["message"]["contextId"] = MARK
    task = rpc(scene.gateway, "SendMessage", params, agent="ask")["result"]["task"]["id"]

    for address in ("#view=tasks&phase=paused", "#view=webhooks", f"#view=task&id={task}"):
        page.open(address)
        page.until(lambda: MARK in page.content("#view"), f"the names in {address}")
        assert page.script("return document.querySelectorAll('#view script, #view img').length") == 0
        assert "taken" not in page.browser.title
    page.open(f"#{urlencode({'view': 'tasks', 'owner': MARK})}")
    page.shows("#view .empty", "No stored task matches")
    assert page.element("#filter-owner").get_attribute("value") == MARK


def test_tasks_of_an_agent_are_filtered_by_state_and_text(page: Page, scene: Scene) -> None:
    for text in ("alpha", "beta"):
        scene.wait_for("echo", scene.send("echo", text), "TASK_STATE_COMPLETED")
    page.open().agent("echo")
    page.element("#tasks .switch button:last-child").click()
    page.until(lambda: len(page.all("#tasks .groups li")) >= 2, "all tasks")

    page.element("#tasks input[type=search]").send_keys("beta")
    page.until(lambda: ["beta" in text for text in page.texts("#tasks .groups li")] == [True], "the found task")
    page.element("#tasks input[type=search]").clear()
    page.element("#tasks .filters select").send_keys("Failed")
    page.shows("#tasks", "No task is in this state")


def test_a_caller_without_the_role_sees_neither_views_nor_tasks_of_others(
    browser: webdriver.Chrome, scene: Scene
) -> None:
    entries = " ".join([api_key_entry("ops", "operator-key"), api_key_entry("bob", "bob-key")])
    gateway = scene.fleet.gateway(A2A_AUTH_API_KEYS=entries, A2A_OPERATORS="ops")
    page = Page(browser, gateway.url)
    page.shape(WIDE)
    view_texts = {}
    for owner in ("bob", "ops"):
        page.open("#view=dead")
        page.until(lambda: "API key" in page.text("#credential-kind"), "the schemes of the card")
        page.element("#credential-kind").send_keys("API key")
        page.element("#credential-value").send_keys(f"{owner}-key" if owner == "bob" else "operator-key", Keys.ENTER)
        page.shows("#credentials-button", f"Signed in as {owner}")
        view_texts[owner] = page.texts("#views a")
        if owner == "bob":
            page.shows("#view [role=status]", "needs the operator’s role")
            assert rows(page) == []
        else:
            page.until(lambda: rows(page), "the dead letters")
    assert [text.split()[0] for text in view_texts["bob"]] == ["Agents", "Inbox"]
    assert len(view_texts["ops"]) == len(VIEWS)
    page.console()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, (820, 1100), NARROW], ids=["wide", "middle", "narrow"])
def test_views_are_accessible_and_fit_the_window(page: Page, scene: Scene, size: tuple[int, int], dark: bool) -> None:
    task = scene.send("count", "5", "/line")
    scene.wait_for("ask", scene.send("ask", LONG), "TASK_STATE_INPUT_REQUIRED")
    page.shape(size, dark=dark)
    problems = {}
    for name, address in {**ADDRESSES, "task": f"#view=task&id={task}"}.items():
        page.open(address)
        selector = "#agents .list a" if name == "agents" else SHOWN
        page.until(lambda selector=selector: page.all(selector), f"the view {name}")
        if folder := os.environ.get("SCREENSHOTS"):
            page.browser.save_screenshot(str(Path(folder) / f"{name}-{size[0]}-{'dark' if dark else 'light'}.png"))
        page.until(lambda: page.script(LINK_IS_VISIBLE), f"the link of the view {name} is visible")
        wide = page.script("return [document.documentElement, document.querySelector('#view')]"
                           ".some(one => one.scrollWidth > one.clientWidth)")  # fmt: skip
        cut_off = page.script(CUT_OFF_CELLS)
        problems[name] = [*violations(page.browser), *(["wider than the window"] if wide else []), *cut_off]

    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_views_are_reached_and_used_with_keys(page: Page) -> None:
    page.open()
    page.until(lambda: "patient" in page.content("#agents"), "the agents are there")
    page.tab_to("Dead letters")
    page.press(Keys.ENTER)
    page.shows("#view h2", "Dead letters")
    page.until(lambda: page.focused_text() == "Dead letters", "the title has the focus")
    page.until(lambda: rows(page), "the dead letters")
    page.tab_to("Requeue task")
    page.press(Keys.ENTER)
    page.tab_to("Requeue the task")
    page.press(Keys.ENTER)
    page.shows("#view .result", "Requeued as")
    assert page.focused_text() == "Dead letters"


def test_a_browser_at_the_root_of_a_gateway_is_sent_to_the_page(browser: webdriver.Chrome, scene: Scene) -> None:
    browser.get("about:blank")
    browser.get(f"{scene.gateway.url}/")

    assert browser.current_url.partition("#")[0] == f"{scene.gateway.url}/ui/"
    assert browser.find_element(By.TAG_NAME, "h1").text == "a2a-celery"
