"""Webhooks on the page. The owner of a webhook reads its deliveries, replays events, and sends a test ping."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.clients.accessibility import violations
from tests.support.clients.bindings import message_json, rpc
from tests.support.clients.browser import Page
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.receivers.posts import DELIVERING, body_with_config
from tests.support.receivers.receiver import Receiver, receiver

DESKTOP, PHONE = (1280, 900), (390, 844)
LONG_URL = "/" + "a-path-of-one-long-word" * 12


@pytest.fixture(scope="module")
def fleet_and_gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    """Fleet with a watcher, whose gateway serves the page."""
    folder = tmp_path_factory.mktemp("fleet")
    with running_fleet(folder, app="tests.support.agents.page_agents", A2A_UI="on", **DELIVERING) as fleet:
        fleet.worker(pool="threads", concurrency=8)
        fleet.watcher()
        yield fleet, fleet.gateway()


@pytest.fixture
def hooks() -> Iterator[Receiver]:
    with receiver() as hooks:
        yield hooks


@pytest.fixture
def page(page: Page) -> Page:
    page.shape(DESKTOP)
    return page


def open_webhooks(page: Page, gateway: Gateway, *urls: str) -> dict[str, Any]:
    """Create a task with a webhook at each URL, and show it in the page with the list of webhooks open. Return the
    task."""
    params = body_with_config(message_json("begin"), urls[0], id="hook-0")
    task: dict[str, Any] = rpc(gateway, "SendMessage", params, agent="ask")["result"]["task"]
    for number, url in enumerate(urls[1:], start=1):
        config = {"taskId": task["id"], "url": url, "id": f"hook-{number}"}
        assert "result" in rpc(gateway, "CreateTaskPushNotificationConfig", config, agent="ask")
    page.open(f"#card=/agents/ask/.well-known/agent-card.json&task={task['id']}")
    page.expand(".webhooks")
    return task


def rows(page: Page) -> list[str]:
    """Return the rows of the first webhook's deliveries, newest first."""
    row_texts = page.script("return [...document.querySelector('.deliveries').children].map(row => row.innerText)")
    return [" ".join(text.split()) for text in row_texts]


def save_screenshot(page: Page, name: str) -> None:
    """Save a screenshot for visual inspection in the folder SCREENSHOTS, if that environment variable is set."""
    if folder := os.environ.get("SCREENSHOTS"):
        page.browser.save_screenshot(str(Path(folder) / f"{name}.png"))


def test_a_webhook_is_shown_with_its_last_deliveries(
    page: Page, fleet_and_gateway: tuple[Fleet, Gateway], hooks: Receiver
) -> None:
    hooks.plan("/hook", [500])
    open_webhooks(page, fleet_and_gateway[1], hooks.url("/hook"))

    page.shows(".webhook .badge", "Up to date")
    assert any("Failed 500" in row and "answered 500" in row for row in rows(page))
    assert "Delivered 200" in rows(page)[0]
    assert hooks.url("/hook") in page.text(".webhook header")
    assert not [button for button in page.all(".webhook button") if button.text == "Replay what failed"]


def test_an_abandoned_delivery_is_replayed(
    page: Page, fleet_and_gateway: tuple[Fleet, Gateway], hooks: Receiver
) -> None:
    hooks.plan("/hook", [410])
    open_webhooks(page, fleet_and_gateway[1], hooks.url("/hook"))
    page.shows(".webhook .badge", "Given up")

    [replay] = [button for button in page.all(".webhook button") if button.text == "Replay what failed"]
    replay.click()

    page.shows(".webhook .badge", "Up to date")
    assert "Gone 410" in rows(page)[-1]


def test_one_event_is_replayed_and_a_ping_is_sent(
    page: Page, fleet_and_gateway: tuple[Fleet, Gateway], hooks: Receiver
) -> None:
    open_webhooks(page, fleet_and_gateway[1], hooks.url("/hook"))
    page.shows(".webhook .badge", "Up to date")
    count_before = len(hooks.requests("/hook"))

    page.element(".deliveries li:last-child button").click()
    hooks.wait_for("/hook", count_before + 1)
    repeated_post = hooks.requests("/hook")[-1]
    assert repeated_post.headers["webhook-id"] == hooks.requests("/hook")[0].headers["webhook-id"]

    [ping] = [button for button in page.all(".webhook button") if button.text == "Send a test ping"]
    ping.click()
    page.until(lambda: "Ping Delivered 200" in rows(page)[0], "the ping is shown")
    assert hooks.requests("/hook")[-1].json()["type"] == "webhook.ping"


@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_nothing_is_wider_than_the_window(
    page: Page, fleet_and_gateway: tuple[Fleet, Gateway], hooks: Receiver, size: tuple[int, int]
) -> None:
    hooks.plan(LONG_URL, [503, 410])
    page.shape(size)
    open_webhooks(page, fleet_and_gateway[1], hooks.url(LONG_URL), hooks.url("/other"))
    page.until(lambda: "Gone" in page.content(".deliveries"), "the deliveries are shown")
    page.element(".webhook").click()
    page.script("document.querySelector('.webhooks').scrollIntoView()")
    save_screenshot(page, f"webhooks-{size[0]}")

    assert violations(page.browser) == []
    for selector in ("html", "#task", ".webhook", ".deliveries"):
        overflow = "const one = document.querySelector(arguments[0]); return one.scrollWidth - one.clientWidth"
        assert page.script(overflow, selector) <= 0, selector


def test_an_agent_without_push_notifications_has_no_list_of_webhooks(page: Page) -> None:
    page.open().agent("quiet")
    page.send("hello")
    page.until(page.task_id, "the task is shown")

    assert not page.all(".webhooks")


def test_a_task_without_webhooks_is_shown_as_such(page: Page) -> None:
    page.open().agent("ask")
    page.send("begin")
    page.shows("#task .question-text", "How many?")

    page.expand(".webhooks")

    page.shows(".webhooks .hint", "None")
