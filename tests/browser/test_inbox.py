"""Inbox of the page: its order, its number, its filter, and answers."""

from __future__ import annotations

import asyncio

import pytest

from a2a_celery.lifecycle.references import Scope
from a2a_celery.lifecycle.states import INPUT_REQUIRED
from a2a_celery.store import AsyncStore
from a2a_celery.store import Keys as StoreKeys
from tests.support.clients.browser import Page
from tests.support.clients.talk import cancel, read, send, state
from tests.support.processes.fleet import Fleet, Gateway
from tests.support.store.seeds import Seeds
from tests.support.waiting import eventually


class Inbox:
    """Fleet and gateway whose inbox is empty at the start of each test."""

    def __init__(self, fleet: Fleet, gateway: Gateway) -> None:
        self.fleet, self.gateway = fleet, gateway

    def send(self, agent: str, text: str) -> str:
        """Send a message, and return the id of its task."""
        return str(send(self.gateway, agent, text, returnImmediately=True)["id"])

    def wait_for(self, agent: str, task_id: str, until: str) -> None:
        eventually(lambda: state(read(self.gateway, agent, {"id": task_id})) == until, what=f"{agent} is {until}")

    def cancel(self, agent: str, task_id: str) -> None:
        cancel(self.gateway, agent, {"id": task_id})


@pytest.fixture
def inbox(fleet_and_gateway: tuple[Fleet, Gateway]) -> Inbox:
    return Inbox(*fleet_and_gateway)


def test_a_question_is_answered_in_the_inbox(page: Page, inbox: Inbox) -> None:
    task = inbox.send("ask", "begin")
    inbox.wait_for("ask", task, "INPUT_REQUIRED")
    page.open("#view=inbox")
    page.shows("#view article", "How many?")

    page.element("#view article textarea").send_keys("7")
    page.element("#view article button.primary").click()

    inbox.wait_for("ask", task, "COMPLETED")
    page.shows("#view", "Nothing waits for you")


def test_a_form_of_the_inbox_is_made_from_the_schema_and_keeps_a_refused_answer(page: Page, inbox: Inbox) -> None:
    task = inbox.send("table", "a table")
    inbox.wait_for("table", task, "INPUT_REQUIRED")
    page.open("#view=inbox")
    page.element("#view article .answer-form button")
    inputs = page.all("#view article .answer-form input")
    assert inputs

    page.element("#view article h3 a").click()

    page.shows("#task .badge", "Needs an answer")
    assert page.task_id() == task
    inbox.cancel("table", task)


def test_what_is_typed_in_the_inbox_stays_while_other_questions_come(page: Page, inbox: Inbox) -> None:
    first = inbox.send("ask", "begin")
    inbox.wait_for("ask", first, "INPUT_REQUIRED")
    page.open("#view=inbox")
    page.element("#view article textarea").send_keys("4 of th")
    second = inbox.send("ask", "again")
    page.until(lambda: len(page.all("#view article")) == 2, "the second question")

    page.press("em")

    assert page.all("#view article textarea")[0].get_attribute("value") == "4 of them"
    for task in (first, second):
        inbox.cancel("ask", task)
    page.shows("#view", "Nothing waits for you")


async def ask(store_url: str, number: int) -> list[str]:
    """Create tasks that wait for an answer, and return their ids."""
    seeds = Seeds(AsyncStore(store_url), StoreKeys())
    ids = [await seeds.create_task_in(INPUT_REQUIRED, scope=Scope(agent="ask")) for _ in range(number)]
    await seeds.store.aclose()
    return ids


def test_the_inbox_begins_with_the_oldest_question_and_counts_all(page: Page, inbox: Inbox) -> None:
    form = inbox.send("table", "a table")
    inbox.wait_for("table", form, "INPUT_REQUIRED")
    ids = asyncio.run(ask(inbox.fleet.redis.store_url, 25))
    page.open("#view=inbox")
    page.shows("#view", "The 20 oldest of 26 waiting tasks")
    assert len(page.all("#view article")) == 20
    links = [str(link.get_attribute("href")) for link in page.all("#view article h3 a")]
    assert [link.rpartition("=")[2] for link in links] == [form, *ids[:19]]
    assert page.text("#views a[href='#view=inbox'] .count").split()[0] == "26"

    [more] = [button for button in page.all("#view button") if button.text == "Show more"]
    more.click()
    page.until(lambda: len(page.all("#view article")) == 26, "all tasks")
    page.element("#inbox-agent").send_keys("table")
    page.until(lambda: len(page.all("#view article")) == 1, "the agent's task")
    assert page.text("#views a[href='#view=inbox'] .count").split()[0] == "26"
    page.open()
    page.until(lambda: page.text("#views a[href='#view=inbox'] .count").split()[:1] == ["26"], "the same number")
    for agent, task in [("table", form), *(("ask", task) for task in ids)]:
        inbox.cancel(agent, task)
