"""Use of the page with the keyboard alone. No key is pressed without an element that has the focus."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.clients.browser import WIDE, Page
from tests.support.clients.talk import cancel, read
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import LIMIT

from .test_operator_actions import Scene

MIDDLE = (900, 800)

HAS_FOCUS = "return document.activeElement !== document.body && document.activeElement.checkVisibility()"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Scene of a fleet in which all callers are operators, with one dead letter."""
    env = {"A2A_UI": "on", "A2A_OPERATORS": "*"}
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.page_agents", **env) as fleet:
        fleet.watcher()
        scene = Scene(fleet, fleet.gateway(), fleet.worker(pool="threads", concurrency=8))
        scene.lose("lost")
        scene.worker = fleet.worker(pool="threads", concurrency=8)
        yield scene


@pytest.fixture
def page_url(scene: Scene) -> str:
    return scene.gateway.url


def open_agent(page: Page, name: str) -> None:
    """Open the page with an agent, and move the focus to the field for a message."""
    page.open(f"#card=/agents/{name}/.well-known/agent-card.json")
    page.shows("#tasks h2", name)
    page.tab_to("Message")


def confirm(page: Page, keep: str = "Go back") -> None:
    """Press the second button of the dialog. Its first button `keep` has the focus."""
    page.focuses(keep)
    page.press(Keys.TAB, Keys.ENTER)


def begin(page: Page, agent: str) -> str:
    """Send a message with the button. Return the id of the task."""
    open_agent(page, agent)
    page.press("begin", Keys.TAB, Keys.ENTER)
    page.until(page.task_id, "the task")
    return page.task_id()


def test_the_focus_stays_on_send(page: Page) -> None:
    begin(page, "patient")
    page.shows("#task .badge", "Working")

    assert page.focused_text() == "Send"
    page.tab_to("Cancel …")
    page.press(Keys.ENTER)
    confirm(page, "Keep it running")
    page.shows("#task .badge", "Canceled")
    page.focuses("begin")


@pytest.mark.parametrize("size", [WIDE, MIDDLE], ids=["wide", "middle"])
def test_the_focus_moves_to_each_question_and_then_to_the_task(page: Page, size: tuple[int, int]) -> None:
    page.shape(size)
    begin(page, "ask")
    page.focuses("Your answer")
    page.press("many", Keys.TAB, Keys.ENTER)
    page.until(lambda: page.count_events("Needs an answer") == 2, "it has asked again")
    page.focuses("Your answer")
    page.press("7", Keys.TAB, Keys.ENTER)

    page.shows("#task article .text", "7 it is")
    page.focuses("begin")


def test_a_question_does_not_take_the_focus_from_a_user_who_does_something_else(page: Page, scene: Scene) -> None:
    open_agent(page, "asks_later")
    page.press("begin", Keys.CONTROL, Keys.ENTER)
    page.shows("#task .badge", "Working")
    page.focuses("Message")
    page.press("the next message")

    signal = {"name": "go", "signalId": "once"}
    url = f"{scene.gateway.url}/operator/v1/tasks/{page.task_id()}:signal"
    assert httpx.post(url, json=signal, timeout=LIMIT).status_code == 200
    page.shows("#task .question-text", "How many?")
    page.press(", continued")
    assert page.element("#tasks textarea").get_attribute("value") == "the next message, continued"
    cancel(scene.gateway, "asks_later", {"id": page.task_id()})


def test_a_task_is_cancelled_in_its_timeline(page: Page, scene: Scene) -> None:
    task_id = scene.begin("patient")
    page.open("#view=tasks")
    page.until(lambda: page.all(f"#view a[href$='{task_id}']"), "the task")
    page.tab_to("begin")
    page.press(Keys.ENTER)
    page.focuses("Timeline")
    page.shows("#view .badge", "Working")
    page.tab_to("Cancel …")
    page.press(Keys.ENTER)
    confirm(page, "Keep it running")

    page.shows("#view .result", "stopped by their workers")
    page.until(lambda: not page.texts("#view .row button"), "an ended task has no actions")
    page.focuses("Timeline")


def test_questions_are_answered_one_after_the_other_in_the_inbox(page: Page, scene: Scene) -> None:
    tasks = [scene.begin("ask", text, until="INPUT_REQUIRED") for text in ("first", "second")]
    page.open()
    page.element("#agents .list a")
    page.tab_to("Inbox")
    page.press(Keys.ENTER)
    page.focuses("Inbox")
    page.until(lambda: len(page.all("#view article")) == 2, "the questions")
    page.tab_to("Your answer")
    page.press("7", Keys.TAB, Keys.ENTER)
    page.until(lambda: len(page.all("#view article")) == 1, "the first question is answered")
    page.focuses("Your answer")
    page.press("8", Keys.CONTROL, Keys.ENTER)

    page.shows("#view .empty", "Nothing waits for you.")
    page.focuses("Inbox")
    for task_id, number in zip(tasks, "78", strict=True):
        scene.wait_for("ask", task_id, "COMPLETED")
        assert f"{number} it is" in str(read(scene.gateway, "ask", {"id": task_id}))


def test_a_dead_letter_is_requeued(page: Page, scene: Scene) -> None:
    page.open("#view=dead")
    page.until(lambda: page.all("#view tbody tr"), "the dead letter")
    page.tab_to("Requeue task")
    page.press(Keys.ENTER)
    confirm(page)

    page.shows("#view .result", "Requeued as")
    page.shows("#view .empty", "No dead letters")
    page.focuses("Dead letters")
    new = page.text("#view .result a")
    scene.wait_for("patient", new, "WORKING")
    cancel(scene.gateway, "patient", {"id": new})


def test_a_worker_is_drained_and_returned_to_service(page: Page, scene: Scene) -> None:
    page.open("#view=workers")
    page.until(lambda: page.all("#view tbody tr"), "the worker")
    page.tab_to("Drain the worker")
    page.press(Keys.ENTER)
    confirm(page)
    page.shows("#view .result", "no longer consumes")
    page.focuses("Return the worker")
    page.press(Keys.ENTER)
    confirm(page)

    page.shows("#view .result", "again")
    page.focuses("Drain the worker")
    assert page.script(HAS_FOCUS)
