"""Actions of operators in the page: the dialog before each action, its result, and the worker's drain."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from selenium.webdriver.common.keys import Keys

from tests.support.agents.page_agents import MARK
from tests.support.clients.accessibility import violations
from tests.support.clients.browser import NARROW, WIDE, Page
from tests.support.clients.talk import cancel, read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.waiting import eventually


@dataclass
class Scene:
    """Fleet with one worker, in which all callers are operators, and its dead letters."""

    fleet: Fleet
    gateway: Gateway
    worker: Process
    dead: list[str] = field(default_factory=list)

    @property
    def node(self) -> str:
        return self.fleet.node_name(self.worker)

    def begin(self, agent: str, text: str = "begin", until: str = "WORKING") -> str:
        """Send a message, and wait until its task is in the state `until`. Return the task's id."""
        task_id = str(send(self.gateway, agent, text, returnImmediately=True)["id"])
        self.wait_for(agent, task_id, until)
        return task_id

    def lose(self, *texts: str) -> None:
        """Kill the worker while it works on messages to the agent patient, whose tasks become dead letters."""
        self.dead = [self.begin("patient", text) for text in texts]
        self.worker.kill()
        for task_id in self.dead:
            self.wait_for("patient", task_id, "FAILED")

    def wait_for(self, agent: str, task_id: str, until: str) -> None:
        eventually(lambda: state(read(self.gateway, agent, {"id": task_id})) == until, what=f"{agent} is {until}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    env = {"A2A_UI": "on", "A2A_OPERATORS": "*"}
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.page_agents", **env) as fleet:
        fleet.watcher()
        scene = Scene(fleet, fleet.gateway(), fleet.worker(pool="threads", concurrency=8))
        scene.lose("first", "second", "third")
        scene.worker = fleet.worker(pool="threads", concurrency=4)
        yield scene


@pytest.fixture
def page_url(scene: Scene) -> str:
    return scene.gateway.url


def confirm(page: Page, *texts: str) -> None:
    """Require `texts` in the dialog, and confirm the dialog."""
    page.element("dialog[open] [type=submit]")
    for text in texts:
        assert text in page.text("dialog[open]")
    page.element("dialog[open] [type=submit]").click()
    page.until(lambda: not page.all("dialog"), "the dialog is closed")


def button(page: Page, label: str) -> None:
    """Click the first visible button of the view whose text or label begins with `label`."""

    def is_clicked() -> bool:
        buttons = page.all("#view button")
        matching = [each for each in buttons if (each.get_attribute("aria-label") or each.text).startswith(label)]
        for first in matching[:1]:
            first.click()
        return bool(matching)

    page.until(is_clicked, f"the button {label}")


def test_a_worker_is_drained_and_returned_to_service(page: Page, scene: Scene) -> None:
    task_id = scene.begin("patient")
    page.open("#view=workers")
    page.until(lambda: "1 of 4" in page.text("#view tbody tr"), "the active runs of the worker")
    assert page.text("#view tbody td").strip() == scene.node

    button(page, "Drain the worker")
    page.shows("dialog[open]", f"Drain {scene.node}?")
    page.element("dialog[open] button").click()
    assert not page.all("dialog")
    button(page, "Drain the worker")
    confirm(page, "1 active run continues", f"No other worker consumes {scene.fleet.queue}")

    page.shows("#view .result", "no longer consumes")
    page.shows("#view tbody .badge", "Drained")
    waiting = str(send(scene.gateway, "echo", "x", returnImmediately=True)["id"])
    assert state(read(scene.gateway, "patient", {"id": task_id})) == "WORKING"
    assert state(read(scene.gateway, "echo", {"id": waiting})) == "SUBMITTED"
    button(page, "Return the worker")
    confirm(page, f"Return {scene.node} to service?")

    page.shows("#view .result", f"consumes {scene.fleet.queue} again")
    scene.wait_for("echo", waiting, "COMPLETED")
    cancel(scene.gateway, "patient", {"id": task_id})
    output = scene.gateway.output()
    assert f"worker {scene.node}: worker.drained by an unauthenticated operator: done" in output
    assert f"worker {scene.node}: worker.undrained by an unauthenticated operator: done" in output


def test_a_task_is_cancelled_in_its_timeline(page: Page, scene: Scene) -> None:
    task_id = scene.begin("patient")
    page.open(f"#view=task&id={task_id}")

    button(page, "Cancel")
    confirm(page, task_id, "patient", "The agent stops")

    page.shows("#view .result", "1 task: 1 stopped by their workers.")
    page.shows("#view .badge", "Canceled")
    page.until(lambda: not page.texts("#view .row button"), "an ended task has no actions")


def test_the_reason_of_a_refused_action_stays_in_the_view(page: Page, scene: Scene) -> None:
    task_id = scene.begin("patient")
    page.open(f"#view=task&id={task_id}")
    button(page, "Send a signal")
    page.element("#signal-name").send_keys("approval")
    cancel(scene.gateway, "patient", {"id": task_id})
    scene.wait_for("patient", task_id, "CANCELED")
    confirm(page, task_id)

    page.shows("#view .result", "receives no signals")
    page.shows("#view .badge", "Canceled")
    assert "receives no signals" in page.text("#view .result")


def test_selected_tasks_are_cancelled_with_a_result_for_each(page: Page, scene: Scene) -> None:
    tasks = [scene.begin("ask", until="INPUT_REQUIRED") for _ in range(3)]
    ended_id = scene.begin("echo", until="COMPLETED")
    page.open("#view=tasks")
    boxes = [f"#view input[aria-label='Select task {task_id}']" for task_id in tasks]
    for box in boxes[:2]:
        page.element(box).click()
    assert not page.all(f"#view input[aria-label='Select task {ended_id}']")
    cancel(scene.gateway, "ask", {"id": tasks[0]})
    page.shows("#view .selection button", "Cancel 1 selected")
    page.element(boxes[2]).click()

    button(page, "Cancel 2 selected")
    confirm(page, "Cancel 2 tasks?", "2 of ask")

    page.shows("#view .result", "2 tasks: 2 canceled.")
    page.expand("#view .result details")
    results = page.texts("#view .result li")
    assert sorted(results) == sorted(f"{task_id} canceled" for task_id in tasks[1:])
    page.until(lambda: not page.all(boxes[1]), "an ended task cannot be selected")


def test_all_open_tasks_shown_are_selected_and_other_ones_are_not(page: Page, scene: Scene) -> None:
    asking, patient = scene.begin("ask", until="INPUT_REQUIRED"), scene.begin("patient")
    page.open("#view=tasks")
    page.element(f"#view input[aria-label='Select task {asking}']")
    page.element("#fleet-search").send_keys(patient)
    page.shows("#view .selection", "Select the 1 open task shown")

    page.element("#select-all").click()
    page.element("#fleet-search").clear()
    page.element("#fleet-search").send_keys(" ")

    page.until(lambda: page.all(f"#view input[aria-label='Select task {asking}']"), "the other task")
    assert page.element(f"#view input[aria-label='Select task {patient}']").is_selected()
    button(page, "Cancel 1 selected")
    confirm(page, "1 of patient")
    page.shows("#view .result", "1 task: 1 stopped by their workers.")
    scene.wait_for("patient", patient, "CANCELED")
    assert state(read(scene.gateway, "ask", {"id": asking})) == "INPUT_REQUIRED"
    cancel(scene.gateway, "ask", {"id": asking})


def test_a_signal_is_sent_to_a_task(page: Page, scene: Scene) -> None:
    task_id = scene.begin("approval", until="WORKING")
    page.open(f"#view=task&id={task_id}")

    button(page, "Send a signal")
    page.element("#signal-name").send_keys("approval")
    page.element("#signal-payload").send_keys("{wrong")
    page.element("dialog[open] [type=submit]").click()
    assert page.all("dialog"), "a payload that is not JSON is not sent"
    page.element("#signal-payload").clear()
    page.element("#signal-payload").send_keys('{"by": "Ann"}')
    confirm(page, task_id)

    page.shows("#view .result", "The task continues with the signal approval.")
    scene.wait_for("approval", task_id, "COMPLETED")
    assert "Ann" in str(read(scene.gateway, "approval", {"id": task_id}))


def test_a_dead_letter_is_requeued_in_its_timeline_and_all_others_in_their_list(page: Page, scene: Scene) -> None:
    page.open(f"#view=task&id={scene.dead[0]}")
    button(page, "Requeue")
    confirm(page, scene.dead[0], "The lost run may have done part of its work")
    page.shows("#view .result", "Requeued as")
    first = page.element("#view .result a").text
    page.until(lambda: not page.texts("#view .row button"), "it is no longer a dead letter")

    page.open("#view=dead")
    button(page, "Requeue all")
    confirm(page, "Requeue all 2 dead letters?", "Each lost run may have done part of its work")

    page.shows("#view .result", "2 tasks requeued, 0 dead letters remain.")
    page.until(lambda: page.texts("#view .empty") == ["No dead letters."], "no claim about lost workers")
    page.expand("#view .result details")
    news = page.texts("#view .result li a")
    assert len(news) == 2
    for task_id in (first, *news):
        scene.wait_for("patient", task_id, "WORKING")
        cancel(scene.gateway, "patient", {"id": task_id})


def test_a_dialog_is_used_with_keys_and_returns_the_focus(page: Page, scene: Scene) -> None:
    task_id = scene.begin("patient")
    page.open(f"#view=task&id={task_id}")
    page.shows("#view .badge", "Working")
    page.tab_to("Cancel …")
    page.press(Keys.ENTER)
    page.focuses("Keep it running")

    page.press(Keys.ESCAPE)

    page.until(lambda: not page.all("dialog"), "the dialog is closed")
    page.focuses("Cancel …")
    assert state(read(scene.gateway, "patient", {"id": task_id})) == "WORKING"
    page.press(Keys.ENTER)
    page.focuses("Keep it running")
    page.tab_to("Cancel the task")
    page.press(Keys.ENTER)
    page.shows("#view .result", "stopped by their workers")


def test_names_that_clients_choose_are_text_in_dialogs(page: Page, scene: Scene) -> None:
    page.open("#view=workers")
    page.until(lambda: page.all("#view tbody tr"), "the workers")
    page.script(
        "import('./actions.js').catch(() => import(document.querySelector('[href$=\"actions.js\"]').href))"
        ".then(({ confirmAction }) => confirmAction({ title: arguments[0], texts: [arguments[0]], action: 'Do it' }))",
        MARK,
    )

    page.shows("dialog[open]", MARK)
    assert page.script("return document.querySelectorAll('dialog script, dialog img').length") == 0
    page.element("dialog[open] button").click()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_dialogs_are_accessible_and_fit_the_window(page: Page, scene: Scene, size: tuple[int, int], dark: bool) -> None:
    task_id = scene.begin("patient")
    page.shape(size, dark=dark)
    problems = {}
    addresses = {
        "Send a signal": f"#view=task&id={task_id}",
        "Drain the worker": "#view=workers",
        "Cancel 1 selected": "#view=tasks",
    }
    for label, address in addresses.items():
        page.open(address)
        if label == "Cancel 1 selected":
            page.element(f"#view input[aria-label='Select task {task_id}']").click()
            problems["list"] = violations(page.browser)
        button(page, label)
        if folder := os.environ.get("SCREENSHOTS"):
            page.browser.save_screenshot(f"{folder}/{label}-{size[0]}-{'dark' if dark else 'light'}.png")
        page.element("dialog[open]")
        wide = page.script("const box = document.querySelector('dialog'); return box.scrollWidth > box.clientWidth")
        problems[label] = [*violations(page.browser), *(["wider than the window"] if wide else [])]
    cancel(scene.gateway, "patient", {"id": task_id})

    assert {label: problem for label, problem in problems.items() if problem} == {}
