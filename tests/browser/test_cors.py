"""Scripts of a page of another origin, with the client of docs/javascript.md, call a gateway with `cors_origins`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest
from selenium import webdriver

from tests.support import ROOT
from tests.support.clients.credentials import API_KEYS
from tests.support.processes.fleet import Gateway, running_fleet

DOCS = (ROOT / "docs" / "javascript.md").read_text(encoding="utf-8")
PROGRAMS = dict(re.findall(r"^```js\n// (\w+\.mjs)\n(.*?)^```", DOCS, re.MULTILINE | re.DOTALL))
KEYLESS = "'Content-Type': 'application/json' };"
WITH_KEY = "'Content-Type': 'application/json', 'X-API-Key': 'one' };"


class QuietHandler(SimpleHTTPRequestHandler):
    """Handler without a log."""

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Origin of a site with the documented client, with and without an API key."""
    folder = tmp_path_factory.mktemp("site")
    client = PROGRAMS["a2a.mjs"]
    assert KEYLESS in client
    (folder / "open.mjs").write_text(client)
    (folder / "a2a.mjs").write_text(client.replace(KEYLESS, WITH_KEY))
    (folder / "index.html").write_text("<!doctype html><title>another origin</title>")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def gateway(origin: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """Gateway with API keys that allows `origin`."""
    env = {**API_KEYS, "A2A_CORS_ORIGINS": origin, "A2A_UI": "on"}
    with running_fleet(tmp_path_factory.mktemp("fleet"), app="tests.support.agents.page_agents", **env) as fleet:
        fleet.worker(pool="threads", concurrency=4)
        yield fleet.gateway()


@pytest.fixture
def script(browser: webdriver.Chrome, origin: str) -> Iterator[Any]:
    """Function that runs an asynchronous script in the page of `origin`. Afterwards, the console is empty, so that the
    next test does not find the refused requests of this test."""
    browser.get(f"{origin}/index.html")
    browser.set_script_timeout(60)

    def run(code: str, *arguments: str) -> Any:
        body = "const done = arguments[arguments.length - 1]; const args = arguments;"
        return browser.execute_async_script(
            f"{body} (async () => {{ {code} }})().then(done, (error) => done(`${{error.name}}: ${{error.message}}`));",
            *arguments,
        )

    yield run
    browser.get_log("browser")


def test_a_script_of_another_origin_calls_an_agent(script: Any, gateway: Gateway) -> None:
    code = """
      const { send, text } = await import("/a2a.mjs");
      const { task } = await send(`${args[0]}/agents/echo`, text("hello"));
      return [task.status.state, task.artifacts[0].parts[0].text];
    """

    assert script(code, gateway.url) == ["TASK_STATE_COMPLETED", "hello"]


def test_a_script_of_another_origin_reads_a_stream_and_resumes_it(script: Any, gateway: Gateway) -> None:
    code = """
      const { stream, text } = await import("/a2a.mjs");
      const agent = `${args[0]}/agents/count`;
      const events = [];
      for await (const event of stream(agent, text("3"))) events.push(event);
      const headers = { "A2A-Version": "1.0", "X-API-Key": "one", "Last-Event-ID": "1" };
      const url = `${agent}/tasks/${events[0].task.id}:subscribe`;
      const rest = await (await fetch(url, { headers })).text();
      return [events.at(-1).statusUpdate.status.state, rest.slice(0, "id: 2-".length)];
    """

    assert script(code, gateway.url) == ["TASK_STATE_COMPLETED", "id: 2-"]


def test_a_script_of_another_origin_reads_a_refusal(script: Any, gateway: Gateway) -> None:
    code = """
      const { send, text } = await import("/open.mjs");
      const error = await send(`${args[0]}/agents/echo`, text("hello")).catch((error) => error);
      const response = await fetch(`${args[0]}/agents/echo/tasks`, { headers: { "A2A-Version": "1.0" } });
      return [error.code, error.reason, response.headers.get("WWW-Authenticate")];
    """

    assert script(code, gateway.url) == [401, "UNAUTHENTICATED", 'ApiKey realm="a2a"']


@pytest.mark.parametrize(
    "path", ["/ui/agents.json", "/ui/inbox.json", "/metrics", "/operator/v1/overview", "/health/ready"]
)
def test_a_script_of_another_origin_can_not_read_the_operators_pages(script: Any, gateway: Gateway, path: str) -> None:
    plain = script("return (await fetch(args[0])).status", gateway.url + path)
    with_key = script("return (await fetch(args[0], { headers: { 'X-API-Key': 'one' } })).status", gateway.url + path)

    assert plain == with_key == "TypeError: Failed to fetch"


def test_a_script_of_an_origin_that_is_not_listed_can_not_read_a_card(
    browser: webdriver.Chrome, script: Any, gateway: Gateway, origin: str
) -> None:
    card = f"{gateway.url}/agents/echo/.well-known/agent-card.json"
    assert script("return (await fetch(args[0])).status", card) == 200

    browser.get(f"{origin.replace('localhost', '127.0.0.1')}/index.html")

    assert script("return (await fetch(args[0])).status", card) == "TypeError: Failed to fetch"
