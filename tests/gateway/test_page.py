"""Files of the operator's page and their headers."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery

from a2a_celery import A2A, Turn, __version__
from a2a_celery.cli.dev.embedded_redis import EmbeddedRedis
from a2a_celery.gateway import page
from a2a_celery.gateway.page import HEADERS, POLICY
from tests.support.clients.credentials import api_key_entry

ROOT = Path(__file__).resolve().parents[2]
UI = ROOT / "a2a_celery" / "gateway" / "ui"


def client_of(redis_server: EmbeddedRedis, *, ui: bool, **settings: Any) -> httpx.AsyncClient:
    """Return a client of a gateway with one agent in the test process."""
    app = Celery("page", broker=redis_server.broker_url)
    app.conf.update(a2a_store_url=redis_server.store_url, a2a_ui=ui, **settings)
    a2a = A2A(app)

    @a2a.agent("greeter")
    async def greeter(turn: Turn) -> str:
        return "hello"

    return httpx.AsyncClient(transport=httpx.ASGITransport(a2a.asgi()), base_url="http://gateway")


@pytest.fixture
async def client(redis_server: EmbeddedRedis) -> AsyncIterator[httpx.AsyncClient]:
    """Client of a gateway that serves the page."""
    async with client_of(redis_server, ui=True) as client:
        yield client


async def test_there_is_no_page_unless_it_is_asked_for(redis_server: EmbeddedRedis) -> None:
    async with client_of(redis_server, ui=False) as client:
        answers = [
            await client.get(path) for path in ("/ui", "/ui/", "/ui/main.js", "/ui/agents.json", "/ui/inbox.json")
        ]

    assert {answer.status_code for answer in answers} == {404}


PROXY = {"a2a_auth_identity_header": "X-Subject", "a2a_auth_proxy_networks": ["10.0.0.0/8"]}
KEYS = {"a2a_auth_api_keys": [api_key_entry("alice", "one")]}


@pytest.mark.parametrize(("settings", "shell"), [(KEYS, 200), (KEYS | PROXY, 200), (PROXY, 401)])
async def test_the_page_is_served_without_a_token_but_its_data_is_not(
    redis_server: EmbeddedRedis, settings: dict[str, Any], shell: int
) -> None:
    async with client_of(redis_server, ui=True, **settings) as client:
        scripts = {route.path for route in page.shell_routes() if route.path.endswith("/main.js")}
        files = [await client.get(path) for path in ("/ui/", *scripts)]
        names = await client.get("/ui/agents.json")

    assert len(scripts) == 2
    assert {answer.status_code for answer in files} == {shell}
    assert names.status_code == 401


async def test_every_file_of_the_page_is_served_with_its_type_and_the_policy(client: httpx.AsyncClient) -> None:
    types = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    for path in UI.iterdir():
        is_page = path.name == "index.html"
        answer = await client.get(f"/ui/{'' if is_page else path.name}")

        assert answer.status_code == 200
        assert is_page or answer.content == path.read_bytes()
        assert answer.headers["content-type"].startswith(types[path.suffix])
        assert {name: answer.headers[name] for name in HEADERS} == HEADERS


@pytest.mark.parametrize(
    ("accept_encoding", "encoding"),
    [("br, gzip", "gzip"), ("gzip;q=0.5", "gzip"), ("br, gzip;q=0, *", None), ("", None)],
)
async def test_a_file_is_compressed_for_a_client_that_accepts_it(
    client: httpx.AsyncClient, accept_encoding: str, encoding: str | None
) -> None:
    answer = await client.get("/ui/style.css", headers={"Accept-Encoding": accept_encoding})
    second_answer = await client.get(
        "/ui/style.css", headers={"Accept-Encoding": accept_encoding, "If-None-Match": answer.headers["etag"]}
    )

    assert answer.headers.get("content-encoding") == encoding
    assert answer.content == (UI / "style.css").read_bytes()
    assert answer.headers["vary"] == "Accept-Encoding"
    assert second_answer.status_code == 304


def test_the_page_preloads_all_of_its_scripts() -> None:
    preloads = re.findall(r'rel="modulepreload" href="(.*?)"', (UI / "index.html").read_text())

    assert preloads == sorted(path.name for path in UI.glob("*.js") if path.name != "main.js")


async def test_the_page_refers_to_files_that_a_browser_caches_forever(client: httpx.AsyncClient) -> None:
    html = (await client.get("/ui/")).text
    paths = re.findall(r'(?:href|src)="([^"#]+)"', html)
    answers = {path: await client.get(f"/ui/{path}") for path in paths}

    [version] = {path.partition("/")[0] for path in paths}
    assert html.replace(f"{version}/", "") == (UI / "index.html").read_text()
    assert {path.partition("/")[2] for path in paths} == {path.name for path in UI.iterdir()} - {"index.html"}
    for path, answer in answers.items():
        assert answer.content == (UI / path.partition("/")[2]).read_bytes()
        assert answer.headers["cache-control"] == "max-age=31536000, immutable"


async def test_a_file_that_the_browser_has_is_not_sent_again(client: httpx.AsyncClient) -> None:
    first = await client.get("/ui/main.js")
    tag = first.headers["etag"]
    second_answer = await client.get("/ui/main.js", headers={"If-None-Match": f'"other", {tag}'})
    newer = await client.get("/ui/main.js", headers={"If-None-Match": '"of the last release"'})

    assert (second_answer.status_code, second_answer.content, second_answer.headers["etag"]) == (304, b"", tag)
    assert newer.content == first.content
    assert first.headers["cache-control"] == "no-cache"


@pytest.mark.parametrize(
    "path",
    [
        "/ui/../page.py",
        "/ui/%2e%2e/page.py",
        "/ui/..%2fpage.py",
        "/ui//etc/passwd",
        "/ui/__init__.py",
        "/ui/index.html/",
    ],
)
async def test_no_path_leads_out_of_the_folder(client: httpx.AsyncClient, path: str) -> None:
    assert (await client.get(path)).status_code == 404


async def test_the_page_redirects_to_its_relative_address_for_use_with_proxies(client: httpx.AsyncClient) -> None:
    answer = await client.get("/ui?x=1")

    assert (answer.status_code, answer.headers["location"]) == (307, "ui/?x=1")


async def test_a_browser_at_the_root_is_led_to_the_page(client: httpx.AsyncClient) -> None:
    answer = await client.get("/")

    assert (answer.status_code, answer.headers["location"]) == (307, "ui/")


@pytest.mark.parametrize("settings", [{}, KEYS])
async def test_the_root_without_the_page_says_what_it_is(redis_server: EmbeddedRedis, settings: dict[str, Any]) -> None:
    async with client_of(redis_server, ui=False, **settings) as client:
        answer = await client.get("/")
        card = await client.get(f"/{answer.text.split('Agent card: ')[1].split()[0]}")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert "A2A gateway" in answer.text
    assert card.json()["name"] == "greeter"


async def test_the_agents_are_listed_by_their_cards(client: httpx.AsyncClient) -> None:
    [agent] = (await client.get("/ui/agents.json")).json()["agents"]
    card = await client.get(httpx.URL("http://gateway/ui/agents.json").join(agent["card"]))

    assert agent["name"] == card.json()["name"] == "greeter"


@pytest.mark.parametrize(("settings", "can_sign_in"), [({}, False), (KEYS, True), (KEYS | PROXY, True)])
async def test_the_page_knows_whether_one_can_sign_in(
    redis_server: EmbeddedRedis, settings: dict[str, Any], can_sign_in: bool
) -> None:
    async with client_of(redis_server, ui=True, **settings) as client:
        response = await client.get("/ui/agents.json", headers={"X-API-Key": "one"})

    content = response.json()
    assert (content["signIn"], content["version"]) == (can_sign_in, __version__)


def test_the_page_brings_the_same_policy_where_others_serve_it() -> None:
    policy = re.search(r'Content-Security-Policy" content="(.*?)"', (UI / "index.html").read_text())
    assert policy is not None

    assert dict(rule.split(" ", 1) for rule in policy[1].split("; ")) == POLICY


def test_the_page_s_code_neither_builds_markup_from_text_nor_stores_data() -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.(?:write|cookie)|\beval\(|new Function|localStorage"
    files = {path.name: path.read_text() for path in UI.iterdir()}

    assert {name: re.findall(forbidden, text) for name, text in files.items() if re.search(forbidden, text)} == {}
    assert {name for name, text in files.items() if re.search(r"https?://(?!www\.w3\.org)", text)} == set()


def test_the_docs_page_lists_the_paths() -> None:
    text = (ROOT / "docs" / "page.md").read_text()

    assert set(re.findall(r"`(/ui/[a-z.]*)`", text)) == {"/ui/", "/ui/agents.json", "/ui/inbox.json"}
    assert page.PATH == "/ui"
