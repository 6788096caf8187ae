"""Operator's page with a real fleet."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import httpx
import pytest
from selenium.webdriver.common.keys import Keys

from a2a_celery.store import SyncStore
from tests.support.agents.page_agents import MARK, RTL
from tests.support.clients.accessibility import violations
from tests.support.clients.bindings import message_json
from tests.support.clients.browser import NARROW, WIDE, Page
from tests.support.processes.fleet import Fleet, Gateway
from tests.support.store.backup import backup_of, restore
from tests.support.waiting import LIMIT


def test_agents_and_their_live_tasks_are_listed_by_state(page: Page) -> None:
    page.open().agent("patient")
    page.send("work")
    page.shows("#task .badge", "Working")
    page.agent("ask")
    page.send("ask me")
    page.shows("#task .badge", "Needs an answer")

    page.shows("#tasks .groups h4", "Needs an answer")
    page.shows("#tasks .groups .line", "How many?")
    page.agent("patient")
    page.shows("#tasks .groups h4", "Working")
    page.element("#tasks .groups a").click()
    page.shows("#task .title", "work")


def test_a_message_becomes_a_task_whose_stream_grows_chunk_by_chunk(page: Page, tmp_path: Path) -> None:
    page.open().agent("halves")
    page.send(f"30 {tmp_path / 'go-on'}")
    page.until(lambda: len(page.text("#task article .text").split()) == 15, "some chunks, and not yet all")
    page.shows("#task .connection", "Live")
    (tmp_path / "go-on").touch()
    page.shows("#task .badge", "Completed")

    assert page.text("#task article .text").split() == [str(number) for number in range(30)]
    versions = page.versions()
    assert versions == list(range(1, len(versions) + 1))
    [row] = [event for event in page.events() if "Artifact" in event]
    assert re.search(r"response, 31 chunks, [\d.]+ m?s$", row), row
    page.expand(".log details:has(> summary .artifactUpdate)")
    assert len(page.all(".log .events .events summary")) == 31


def test_the_parts_of_a_long_artifact_are_shown_step_by_step(page: Page) -> None:
    page.open().agent("count")
    page.send("450")
    page.shows("#task .badge", "Completed")
    page.until(lambda: any("chunks" in event for event in page.events()), "the artifact")
    page.expand(".log details:has(> summary .artifactUpdate)")
    rows = "return document.querySelectorAll('.log .events .events summary').length"
    counts = []
    while page.all(".log li button"):
        counts.append(page.script(rows))
        page.element(".log li button").click()

    assert counts == [200, 400]
    assert page.script(rows) >= 450


def test_metadata_with_and_without_the_prefix_is_shown_once(page: Page) -> None:
    page.open().agent("fails")
    page.send("now")
    page.shows("#task .badge", "Failed")
    page.expand(".log .events > li:last-child details")

    event = page.text(".log .events > li:last-child pre")
    assert '"a2a_celery/reference":' in event
    assert '"reference":' not in event


def test_a_task_that_is_opened_later_shows_its_whole_log(page: Page) -> None:
    page.open().agent("counts_aloud")
    page.send("900")
    page.shows("#task .badge", "Completed")
    address = page.browser.current_url

    page.open(address.partition("/ui/")[2])
    page.until(lambda: "900" in page.content("#task .log").replace(",", "") or len(page.versions()) == 200, "the log")
    newest = page.versions()[-1]
    assert page.versions() == list(range(newest - 199, newest + 1))
    times = page.script("return [...document.querySelectorAll('.events .event-time')].map(cell => cell.textContent)")
    local_time = page.script("const now = new Date(); return now.toTimeString().slice(0, 5)")
    assert [time for time in times if not re.fullmatch(r"\d\d:\d\d:\d\d\.\d{3}", time)] == []
    assert {time[:3] for time in times} <= {local_time[:3], f"{(int(local_time[:2]) - 1) % 24:02}:"}, (
        "times of the events"
    )
    while page.all("#task .log > button"):
        page.element("#task .log > button").click()
    assert page.versions() == list(range(1, newest + 1))


def test_a_question_is_answered_in_its_task(page: Page) -> None:
    page.open().agent("ask")
    page.send("begin")
    page.shows("#task .question-text", "How many?")
    task = page.task_id()
    page.answer("many")
    page.until(lambda: page.count_events("Needs an answer") == 2, "it has asked again")
    page.focuses("Your answer")
    page.press("7", Keys.CONTROL, Keys.ENTER)
    page.shows("#task .badge", "Completed")

    assert page.task_id() == task
    assert page.text("#task article .text") == "7 it is"
    assert not page.all("#task .question")
    page.shows_sent("begin", "many", "7")


def test_a_task_is_replaced_if_the_store_has_lost_its_newest_events(
    page: Page, fleet_and_gateway: tuple[Fleet, Gateway]
) -> None:
    page.open().agent("ask")
    page.send("begin")
    page.shows("#task .question-text", "How many?")
    store = SyncStore(fleet_and_gateway[0].redis.store_url)
    backup = backup_of(store)
    page.answer("many")
    page.until(lambda: page.count_events("Needs an answer") == 2, "it has asked again")

    restore(store, backup)
    store.close()

    page.shows_sent("begin")  # the lost message is gone
    page.answer("7")
    page.shows("#task .badge", "Completed")
    page.shows_sent("begin", "7")


CONVERSATION = """
const [order, hasHistory] = arguments;
const { Follower } = await import(document.querySelector('[href$="follower.js"]').href);
const message = (messageId, role = 'ROLE_AGENT') => ({ messageId, role, parts: [{ text: messageId }] });
const status = (state, question) => ({ state: `TASK_STATE_${state}`, ...(question && { message: message(question) }) });
const follower = new Follower({}, 'id', { onEvent() {}, onChange() {} });
const history = [message('request', 'ROLE_USER')];
follower.addEvent({ id: '1', event: { task: { id: 'id', status: status('INPUT_REQUIRED', 'question'), history } } });
const answer = message('answer', 'ROLE_USER');
const response = { task: hasHistory ? { history: [...history, message('question'), answer] } : {} };
const steps = {
  S: () => follower.addEvent({ id: '2', event: { statusUpdate: { status: status('SUBMITTED') } } }),
  W: () => follower.addEvent({ id: '3', event: { statusUpdate: { status: status('WORKING', 'progress') } } }),
  Q: () => follower.addEvent({ id: '4', event: { statusUpdate: { status: status('INPUT_REQUIRED', 'next') } } }),
  A: () => follower.addSentMessage(answer, response),
};
for (const step of order) steps[step]();
return follower.task.history.map(({ messageId }) => messageId);
"""
"""Script that returns the conversation of a task after an answer (A) and three events (S, W, Q) in a given order."""


@pytest.mark.parametrize("order", ["ASWQ", "SAWQ", "SWAQ", "SWQA"])
def test_an_answer_follows_its_question_whenever_the_response_arrives(page: Page, order: str) -> None:
    page.open()
    page.element("#agents .list")

    assert page.script(CONVERSATION, order, True) == ["request", "question", "answer", "progress"]
    if order.startswith("A"):
        assert page.script(CONVERSATION, order, False) == ["request", "question", "answer", "progress"]


ROW_OF_OPEN_TASK = """
const row = document.querySelector('#tasks a[aria-current]');
const state = document.querySelector('#task .task-head .badge').textContent;
const group = row?.closest('section').querySelector('h4 .badge').textContent;
return [state, group, row?.querySelector('.request').textContent];
"""
"""Script that returns the state of the open task, the state of its row in the list, and the title of the row."""


def test_the_row_of_the_open_task_follows_its_events(page: Page) -> None:
    page.open().agent("ask")
    page.send("a row")
    for state, button in (("Needs an answer", "Answer"), ("Completed", "")):
        found: list[str | None] = []

        def has_state(state: str = state, found: list[str | None] = found) -> bool:
            found[:] = page.script(ROW_OF_OPEN_TASK)
            return found[0] == state

        page.until(has_state, state)
        assert found[1:] == (["Needs an answer", "a row"] if button else [None, None])
        if button:
            page.answer("7")


def test_rows_show_the_whole_difference_of_requests_and_the_question(page: Page) -> None:
    page.open().agent("ask")
    common = "Please summarise the quarterly report of the department for which we have asked you several times, "
    for number in ("first", "second"):
        page.send(f"{common}{number}")
        page.shows("#task .badge", "Needs an answer")
        page.until(lambda number=number: page.texts("#tasks .request")[0].endswith(number), "the row")

    rows = page.texts("#tasks .groups li")[:2]

    assert [row.splitlines()[0].rpartition(", ")[2] for row in rows] == ["second", "first"]
    assert all("How many?" in row.splitlines()[1] for row in rows)
    assert page.texts("#tasks .request")[0].startswith("Please summarise the quarterly report")


def test_a_task_links_to_its_parent_and_its_children(page: Page) -> None:
    page.open().agent("ask")
    page.send("parent")
    page.shows("#task .badge", "Needs an answer")
    parent = page.task_id()
    message = message_json("child")
    message["message"]["metadata"] = {"a2a_celery/parentTaskId": parent}
    url = page.url.replace("/ui/", "/agents/echo/message:send")
    child = httpx.post(url, json=message, headers={"A2A-Version": "1.0"}, timeout=LIMIT).json()["task"]["id"]

    page.expand("#task .family")
    page.shows("#task .family li", child)
    page.element("#task .family a").click()
    page.shows("#task .ids", child)
    page.expand("#task .family")
    page.shows("#task .family h4", "Parent task")
    page.element("#task .family a").click()
    page.shows("#task .ids", parent)


def test_cancelling_asks_first_and_stops_the_agent(page: Page) -> None:
    page.open().agent("patient")
    page.send("wait")
    page.shows("#task .badge", "Working")
    page.element("#task .title .danger").click()
    page.element("dialog button").click()
    assert not page.all("dialog")
    assert page.text("#task .badge") == "Working"

    page.element("#task .title .danger").click()
    page.element("dialog .danger").click()
    page.shows("#task .badge", "Canceled")
    assert not page.all("#task .title .danger")


def test_a_gateway_that_is_restarted_costs_no_event(
    page: Page, fleet_and_gateway: tuple[Fleet, Gateway], tmp_path: Path
) -> None:
    fleet, gateway = fleet_and_gateway
    page.open().agent("halves")
    page.send(f"120 {tmp_path / 'go-on'}")
    page.until(lambda: len(page.versions()) > 5, "it streams")
    gateway.signal_group(signal.SIGKILL)
    gateway.popen.wait(10)
    page.shows("#task .connection", "Connection lost")
    next_gateway = fleet.restart_gateway(gateway)
    try:
        page.shows("#task .connection", "Live")
        (tmp_path / "go-on").touch()
        page.shows("#task .badge", "Completed")
        assert page.text("#task article .text").split() == [str(number) for number in range(120)]
        assert page.versions() == list(range(1, page.versions()[-1] + 1))
    finally:
        fleet.processes.remove(next_gateway)
        fleet_and_gateway[1].popen = next_gateway.popen  # the fleet's gateway for the next tests


def test_pages_that_were_left_hold_no_connection(page: Page) -> None:
    page.open().agent("ask")
    page.send("begin")
    page.shows("#task .question-text", "How many?")
    address = page.browser.current_url.partition("/ui/")[2]
    for _ in range(7):  # a browser opens at most six connections to an address
        page.open(address)
        page.shows("#task .connection", "Live")
    page.answer("7")
    page.shows("#task .badge", "Completed")


def test_output_of_an_agent_is_shown_as_text(page: Page) -> None:
    page.open().agent("hostile")
    page.expand("#tasks .about details")
    assert page.text("#tasks .lead") == f"Says {MARK}"
    page.send(f"{MARK} {RTL}")
    page.shows("#task .question-text", "script link")
    question_text = page.content("#task .question-text")
    assert MARK in question_text
    page.answer(MARK)
    page.shows("#task .badge", "Completed")

    assert page.browser.title.startswith("Completed · <script>")
    assert page.script("return document.querySelectorAll('main script, main img').length") == 0
    assert MARK in page.content("#task article strong")
    anchors = "[...document.querySelectorAll('#task a[href]')]"
    links = page.script(f"return {anchors}.map(one => [one.protocol, one.rel, one.download])")
    web = [link for link in links if link[0] == "https:"]
    assert web
    assert all("noopener" in rel for _, rel, _ in web)
    assert {protocol for protocol, _, _ in links} == {"http:", "https:", "blob:"}
    assert all(name == f".._{MARK.replace('/', '_')}.html" for protocol, _, name in links if protocol == "blob:")
    page.until(lambda: "Only the end is shown" in page.text("#task article .parts"), "a huge text is cut for the eye")
    [more] = [button for button in page.all("#task article button") if "Only the end" in button.text]
    more.click()
    assert page.content("#task article").count("many words") == 20_000


def test_errors_of_the_protocol_are_shown_with_their_details(page: Page) -> None:
    page.open().agent("echo")
    page.expand("#tasks > div > .more")
    page.element("#task-id").send_keys("nothing-of-that-name\n")
    page.shows("#notices", "This task does not exist")
    page.shows("#notices dl", "TASK_NOT_FOUND")
    page.shows("#task .empty", "This task does not exist")

    page.agent("strict")
    page.send("hello")
    page.shows("#notices", "requires an extension")
    page.shows("#tasks .composer .hint", "Not sent")
    assert page.element("#tasks .composer textarea").get_attribute("value") == "hello"


def test_a_failure_shows_its_reference(page: Page) -> None:
    page.open().agent("fails")
    page.send("fail")
    page.shows("#task .badge", "Failed")

    [code] = page.all("#task .message .reference code")
    assert re.fullmatch("[0-9a-f]{12}", code.text)


def test_an_agent_may_answer_without_a_task_and_without_streams(page: Page) -> None:
    page.open().agent("direct")
    page.send("0")
    page.shows("#task", "Direct answer, without a task")

    page.agent("quiet")
    page.shows("#tasks .about", "This agent does not stream")
    page.send("hi")
    page.shows("#task .badge", "Completed")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, (900, 800), NARROW], ids=["wide", "middle", "narrow"])
def test_it_fits_and_can_be_read(page: Page, size: tuple[int, int], dark: bool) -> None:
    page.shape(size, dark=dark)
    page.open("#card=/agents/hostile/.well-known/agent-card.json")
    page.send("look")
    page.shows("#task .question-text", "script link")

    assert page.script("return document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.script(CUT_OFF) == []
    assert page.script(BROKEN_LINES) == []
    assert violations(page.browser) == []
    assert {state: ratio for state, ratio in page.script(CONTRASTS).items() if ratio < 4.5} == {}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_dialogs_forms_and_errors_are_accessible(page: Page, size: tuple[int, int], dark: bool) -> None:
    page.shape(size, dark=dark)
    page.open().agent("patient")
    page.expand("#tasks .about details")
    page.expand("#tasks > div > .more")
    page.element("#task-id").send_keys("nothing-of-that-name\n")
    page.shows("#notices", "This task does not exist")
    assert violations(page.browser) == []

    page.open("#card=/agents/patient/.well-known/agent-card.json")
    page.send("wait")
    page.shows("#task .badge", "Working")
    page.expand("#task .family")
    page.shows("#task .family .hint", "None")
    assert violations(page.browser) == []
    page.element("#task .title .danger").click()
    page.element("dialog .danger")
    assert violations(page.browser) == []
    page.element("dialog .danger").click()
    page.shows("#task .badge", "Canceled")


LONG = "Compare the offers of all carriers for the route and write down which of them holds its price " * 4 + "x" * 200


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["1280", "390"])
def test_no_pane_scrolls_sideways(page: Page, size: tuple[int, int]) -> None:
    page.shape(size)
    page.open("#card=/agents/patient/.well-known/agent-card.json")
    page.send(LONG)
    page.shows("#task .badge", "Working")
    assert page.script(SIDEWAYS) == []
    page.open("#card=/agents/patient/.well-known/agent-card.json")
    page.shows("#tasks .groups .request", "Compare the offers")
    assert page.script(SIDEWAYS) == []
    page.element("#tasks .switch button:last-child").click()
    page.until(lambda: "Working" in page.text("#tasks .groups li .badge"), "the list of all tasks")
    assert page.script(SIDEWAYS) == []

    page.open("#card=/agents/hostile/.well-known/agent-card.json")
    page.send("look")
    page.shows("#task .question-text", "script link")
    assert page.script(SIDEWAYS) == []


SIDEWAYS = """
return [document.documentElement, ...document.querySelectorAll('.pane')]
  .filter(one => one.checkVisibility() && one.scrollWidth > one.clientWidth)
  .map(one => `${one.id || one.tagName}: ${one.scrollWidth} in ${one.clientWidth}`)
"""
"""Script that returns the panes whose content is wider than the pane."""

CUT_OFF = """
return [...document.querySelectorAll('main button, main input, main textarea, main .badge')]
  .filter(one => one.checkVisibility()).map(one => [one, one.getBoundingClientRect()])
  .filter(([, box]) => box.right > innerWidth + 1 || box.left < -1).map(([one]) => one.outerHTML.slice(0, 200))
"""
"""Script that returns the controls that are partly outside of the window."""

BROKEN_LINES = """
const lines = (node) => {
  const range = document.createRange();
  range.selectNodeContents(node);
  return range.getClientRects().length;
};
return [...document.querySelectorAll('#task .ids > span')]
  .flatMap(one => [one.firstChild, one.querySelector('button').firstChild])
  .filter(node => lines(node) !== 1).map(node => node.textContent)
"""
"""Script that returns the labels and the buttons of ids that are broken into several lines."""

CONTRASTS = """
const states = 'SUBMITTED WORKING INPUT_REQUIRED AUTH_REQUIRED COMPLETED FAILED CANCELED REJECTED'.split(' ');
const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
const channels = colour => {
  canvas.clearRect(0, 0, 1, 1);
  canvas.fillStyle = colour;
  canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
};
const light = colour => channels(colour).map(one => one / 255)
  .map(one => one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4)
  .reduce((sum, one, i) => sum + one * [0.2126, 0.7152, 0.0722][i], 0);
const ratio = (one, other) => {
  const [low, high] = [light(one), light(other)].sort((a, b) => a - b);
  return (high + 0.05) / (low + 0.05);
};
const found = {};
for (const state of states) {
  const badge = document.createElement('span');
  badge.className = 'badge';
  badge.dataset.state = `TASK_STATE_${state}`;
  document.querySelector('#task').append(badge);
  const style = getComputedStyle(badge);
  found[state] = ratio(style.color, style.backgroundColor);
  badge.remove();
}
for (const name of ['--text', '--soft', '--accent', '--danger']) {
  for (const ground of ['--background', '--surface', '--raised']) {
    const root = getComputedStyle(document.documentElement);
    found[`${name} on ${ground}`] = ratio(root.getPropertyValue(name), root.getPropertyValue(ground));
  }
}
found.primary = ratio(getComputedStyle(document.documentElement).getPropertyValue('--accent-text'),
  getComputedStyle(document.documentElement).getPropertyValue('--accent'));
return found;
"""
"""Script that returns the WCAG contrast ratio of each state's badge, and of each text colour on each background."""


def test_all_of_it_is_done_with_keys(page: Page) -> None:
    page.open()
    page.until(lambda: "patient" in page.content("#agents"), "the agents are there")
    page.tab_to("patient")
    page.press(Keys.ENTER)
    page.shows("#tasks h2", "patient")
    page.tab_to("Message")
    page.press("wait", Keys.CONTROL, Keys.ENTER)
    page.shows("#task .badge", "Working")
    page.tab_to("Cancel …")
    page.press(Keys.ENTER)
    assert page.focused_text() == "Keep it running"
    page.press(Keys.TAB)
    page.press(Keys.ENTER)
    page.shows("#task .badge", "Canceled")
