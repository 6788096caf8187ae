"""Operator's page on other servers: the SDK's server, and servers with fewer features."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from selenium import webdriver

from tests.support.clients.browser import WIDE, Page
from tests.support.processes.plain_server import Steps, plain_server
from tests.support.processes.restricted_server import Card, RestrictedServer


@asynccontextmanager
async def page_beside(
    browser: webdriver.Chrome, steps: Steps, server: RestrictedServer, *, streaming: bool = True
) -> AsyncIterator[Page]:
    """Open the page on a restricted server. After the block, require that the page has not violated its
    Content-Security-Policy."""
    async with plain_server(steps, streaming=streaming, around=server) as url:
        page = Page(browser, url)
        page.shape(WIDE)
        yield page
        await asyncio.to_thread(browser.get, "about:blank")  # open connections would delay the server's shutdown
    assert page.console() == []


async def test_the_sdks_own_server(browser: webdriver.Chrome) -> None:
    steps, does = Steps(), asyncio.to_thread
    async with page_beside(browser, steps, RestrictedServer()) as page:
        await does(page.open)
        await does(page.agent, "plain")
        await does(page.send, "go")
        await does(page.shows, "#task .badge", "Working")
        await steps.given.put("one ")
        await does(page.shows, "#task article .text", "one")
        await does(page.shows, "#tasks .groups h4", "Working")
        await steps.given.put("two")
        await does(page.shows, "#task article .text", "one two")
        await steps.given.put(None)
        await does(page.shows, "#task .badge", "Completed")
        address = page.browser.current_url.partition("/ui/")[2]
        await does(page.open, address)
        await does(page.shows, "#task article .text", "one two")
        await does(page.until, lambda: "stores no events" in page.text("#task"), "it says that there is no log")


async def test_a_token_is_asked_for_and_sent_and_forgotten_with_the_page(browser: webdriver.Chrome) -> None:
    steps, does = Steps(), asyncio.to_thread
    async with page_beside(browser, steps, RestrictedServer(token="open sesame")) as page:
        await does(page.open)
        await does(page.shows, "#notices", "requires a token")
        await does(lambda: page.element("#credential-value").send_keys("open sesame\n"))
        await does(page.shows, "#credentials-button", "Signed in")
        await does(page.agent, "plain")
        await does(page.send, "go")
        await does(page.shows, "#task .badge", "Working")
        stored_state = await does(
            page.script, "return [document.cookie, sessionStorage.length, localStorage.length].join()"
        )
        assert stored_state == ",0,0"
        await steps.given.put(None)
        await does(page.shows, "#task .badge", "Completed")
        await does(page.open)
        await does(page.shows, "#notices", "requires a token")


async def test_one_without_lists_and_streams(browser: webdriver.Chrome) -> None:
    steps, does = Steps(), asyncio.to_thread
    async with page_beside(browser, steps, RestrictedServer(["ListTasks"]), streaming=False) as page:
        await does(page.open)
        await does(page.agent, "plain")
        await does(page.shows, "#tasks .about", "This agent does not stream")
        await does(page.shows, "#tasks", "does not list its tasks")
        await does(page.send, "go")
        await does(page.shows, "#task .connection", "does not stream")
        await does(page.shows, "#tasks .groups .request", "go")
        await steps.given.put("done")
        await steps.given.put(None)
        await does(page.shows, "#task .badge", "Completed")
        await does(page.shows, "#task article .text", "done")


def legacy(card: Card, _: str) -> Card:
    """Return a card of protocol 0.3."""
    return {"name": "old", "url": "https://example.com/", "protocolVersion": "0.3.0", "preferredTransport": "JSONRPC"}


def card_of_other_origin(card: Card, base: str) -> Card:
    """Return a card that names a different origin, and HTTP+JSON as its only binding."""
    return {
        **card,
        "supportedInterfaces": [
            {"url": "https://example.com", "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"}
        ],
    }


def none(card: Card, _: str) -> Card:
    """Return an invalid card."""
    return {"hello": "world"}


@pytest.mark.parametrize(
    ("card", "error"), [(legacy, "offers JSONRPC 0.3.0; this page supports A2A 1.0"), (none, "no agent card")]
)
async def test_an_agent_that_the_page_can_not_speak_to(
    browser: webdriver.Chrome, card: Callable[[Card, str], Card], error: str
) -> None:
    async with page_beside(browser, Steps(), RestrictedServer(card=card)) as page:
        await asyncio.to_thread(page.open)
        await asyncio.to_thread(page.shows, "#tasks", error)


async def test_a_card_that_names_another_address_and_http_json(browser: webdriver.Chrome) -> None:
    steps, does = Steps(), asyncio.to_thread
    async with page_beside(browser, steps, RestrictedServer(card=card_of_other_origin)) as page:
        await does(page.open)
        await does(page.agent, "plain")
        await does(page.shows, "#tasks .about", "The card names https://example.com")
        await does(page.send, "go")
        await does(page.shows, "#task .badge", "Working")
        await does(page.shows, "#tasks .groups h4", "Working")
        await does(lambda: page.element("#task .title .danger").click())
        await does(lambda: page.element("dialog .danger").click())
        await does(page.shows, "#task .badge", "Canceled")


REPEATED = """
  const { el } = await import("./dom.js");
  const { TaskView } = await import("./task_view.js");
  const view = new TaskView(el("div"), () => view.draw(task));
  const said = (n) => ({ messageId: "same", role: "ROLE_USER", parts: [{ text: String(n) }] });
  const artifacts = ["a", "b"].map((text) => ({ artifactId: "same", parts: [{ text }] }));
  const history = [...Array(60).keys()].map(said);
  const task = { id: "t", status: { state: "TASK_STATE_WORKING" }, history, artifacts };
  const shown = (box) => [...box.querySelectorAll(".text")].map((text) => text.textContent);
  view.draw(task);
  view.draw(task);
  const last = shown(view.messages);
  view.earlierButton.click();
  return [last, shown(view.messages), shown(view.artifacts)];
"""


async def test_messages_with_the_same_id_are_all_shown(browser: webdriver.Chrome) -> None:
    async with page_beside(browser, Steps(), RestrictedServer()) as page:
        await asyncio.to_thread(page.open)
        last, every, artifacts = await asyncio.to_thread(page.script, REPEATED)

    texts = [str(number) for number in range(60)]
    assert (last, every, artifacts) == (texts[10:], texts, ["a", "b"])


ASKED_AT = """
  const { Agent } = await import("./agent_client.js");
  const offered = { url: arguments[0], protocolBinding: "JSONRPC", protocolVersion: "1.0" };
  const card = { name: "x", supportedInterfaces: [offered] };
  return new Agent(card, location.href, () => ({})).url.replace(location.origin, "HERE");
"""


async def test_no_address_in_a_card_leads_to_another_origin(browser: webdriver.Chrome) -> None:
    async with page_beside(browser, Steps(), RestrictedServer()) as page:
        await asyncio.to_thread(page.open)
        urls = ["https://example.com/a?b=c", "https://example.com//example.net/a", "//example.net//example.com"]
        origins = [await asyncio.to_thread(page.script, ASKED_AT, url) for url in urls]

    assert origins == ["HERE/a?b=c", "HERE//example.net/a", "HERE//example.com"]
