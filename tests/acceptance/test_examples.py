"""The projects of examples/, started with the commands in their READMEs."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.support import ROOT
from tests.support.processes.fleet import Fleet, Process, free_port, running_fleet
from tests.support.processes.terminal import terminal
from tests.support.waiting import LIMIT, eventually

SHOP = ROOT / "examples" / "django_shop"
README = (SHOP / "README.md").read_text(encoding="utf-8")
DEV, CURL, SEPARATE, PAGES = re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
QUEUES = ROOT / "examples" / "two_queues"
ASSISTANT = ROOT / "examples" / "langgraph_assistant"
ASSISTANT_README = (ASSISTANT / "README.md").read_text(encoding="utf-8")
MESSAGES = re.findall(r"agents/(\w+)/message:send.*?-d '(.*?)'", (QUEUES / "README.md").read_text(), re.DOTALL)
BIN = Path(sys.executable).parent
CALL = "from a2a_celery.cli.main import main; main()"
V1 = {"A2A-Version": "1.0"}
TEA = {"product": "tea", "quantity": 2}


class Project:
    """Copy of an example in `folder`. Its processes belong to `fleet`."""

    def __init__(self, fleet: Fleet, example: Path, folder: Path) -> None:
        self.fleet, self.folder, self.port = fleet, folder / example.name, free_port()
        ignore = shutil.ignore_patterns("*.sqlite3", "__pycache__")
        shutil.copytree(example, self.folder, ignore=ignore)
        self.env = {"PATH": f"{BIN}:/usr/bin:/bin", "PYTHONPATH": f"{self.folder}:{ROOT}", "PYTHONUNBUFFERED": "1"}

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, name: str, line: str) -> Process:
        """Run a line of the README in the folder of the copy."""
        commands_before, _, last = line.replace("8000", str(self.port)).rpartition("&& ")
        shell = f"cd {shlex.quote(str(self.folder))} && {commands_before and commands_before + '&& '}exec {last}"
        process = Process(name, ["bash", "-c", shell], self.env, self.folder.parent / f"{name}.log")
        self.fleet.processes.append(process)
        return process


@pytest.fixture
def shop(fleet: Fleet, tmp_path: Path) -> Project:
    return Project(fleet, SHOP, tmp_path)


def test_one_command_starts_the_agent_of_the_shop(shop: Project) -> None:
    dev = shop.start("dev", DEV.strip())
    dev.wait_for_output("# Ready")
    program, *_, body = shlex.split(CURL)
    assert program == "curl"

    task = request_task(f"{shop.url}/message:send", json.loads(body))

    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["artifacts"][0]["parts"][0]["data"] == {"order": 1, **TEA}


def test_pages_and_gateway_share_a_server(shop: Project) -> None:
    redis = shop.fleet.redis
    export, *commands = SEPARATE.splitlines()
    assert export.startswith("export CELERY_BROKER_URL=redis://")
    shop.env |= {"CELERY_BROKER_URL": redis.broker_url, "A2A_STORE_URL": redis.store_url}
    shop.start("migrate", DEV.partition(" && ")[0]).popen.wait(LIMIT)
    for number, command in enumerate(commands):
        shop.start(f"process-{number}", command)
    eventually(lambda: serves(shop.url, "/orders/"), what="the pages are served")

    delayed_response, immediate_response, _ = [request_page(shop, line) for line in PAGES.splitlines()]
    unknown_argument_response = httpx.post(f"{shop.url}/orders/now/", json={"color": "red"}, timeout=LIMIT)
    invalid_json_response = httpx.post(f"{shop.url}/orders/now/", content="tea", timeout=LIMIT)
    message = {"messageId": "1", "role": "ROLE_USER", "parts": [{"text": "spoons"}]}
    task = request_task(f"{shop.url}/a2a/message:send", {"message": message})
    rolled_back = httpx.post(f"{shop.url}/orders/all/", json=[{"product": "forks"}, {"color": "red"}], timeout=LIMIT)
    committed = httpx.post(f"{shop.url}/orders/all/", json=[{"product": "pots"}, {"product": "pans"}], timeout=LIMIT)
    ids = committed.json()["tasks"]

    assert delayed_response.status_code == 202
    assert immediate_response.json()["state"] == "COMPLETED"
    assert unknown_argument_response.status_code == invalid_json_response.status_code == 400
    assert task["artifacts"][0]["parts"][0]["data"] | {"order": 0} == {"order": 0, "product": "spoons", "quantity": 1}
    eventually(lambda: {"tea", "cups", "spoons", "pots", "pans"} == products(shop), what="all orders are stored")
    assert (rolled_back.status_code, committed.status_code) == (400, 202)
    assert [httpx.get(f"{shop.url}/a2a/tasks/{id}", headers=V1).status_code for id in ids] == [200, 200]


ONE_COMMAND, REFUND = re.findall(r"^```sh\n(.*?)\n^```", ASSISTANT_README, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def assistant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    folder = tmp_path_factory.mktemp("assistant")
    setting, _, start = ONE_COMMAND.partition(" ")
    with running_fleet(folder) as fleet:
        project = Project(fleet, ASSISTANT, folder)
        project.env |= dict([setting.split("=")])
        project.start("dev", start).wait_for_output("# Ready")
        yield project


@pytest.mark.parametrize(
    ("decision", "text"),
    [("yes", "19.90 for order A7 was refunded. Sorry!"), ("no", "The refund of order A7 was declined. Sorry!")],
)
def test_a_person_decides_about_a_refund(assistant: Project, decision: str, text: str) -> None:
    _, verb, url, message = shlex.split(REFUND)

    with terminal(CALL, verb, url.replace("http://localhost:8000", assistant.url), message) as screen:
        screen.shows("Pay this refund? (yes or no): ")
        screen.types(f"{decision}\n")
        screen.shows("Note to the customer")
        screen.types("Sorry!\n")

        assert screen.ends() == 0
    assert screen.screen.endswith(f"{text}\r\nCOMPLETED\r\n")
    assert httpx.get(f"{assistant.url}/ui/").status_code == 200


def test_each_queue_has_its_worker(fleet: Fleet) -> None:
    """The test runs the services of compose.yaml as processes. tests/docker/test_examples.py runs them as
    containers."""
    services = yaml.safe_load((QUEUES / "compose.yaml").read_text(encoding="utf-8"))["services"]
    port = free_port()
    environment = fleet.environment | services["gateway"]["environment"] | {"PYTHONPATH": f"{QUEUES}:{ROOT}"}
    environment |= {"CELERY_BROKER_URL": fleet.redis.broker_url, "A2A_STORE_URL": fleet.redis.store_url}
    assert services.keys() == {"redis", "gateway", "watcher", "fast", "slow"}
    for name in services.keys() - {"redis"}:
        program, *arguments = [word.replace("8000", str(port)) for word in services[name]["command"]]
        command = [str(BIN / program), *arguments]
        fleet.processes.append(Process(name, command, environment, fleet.folder / f"{name}.log"))
    url = f"http://127.0.0.1:{port}"
    eventually(lambda: serves(url), what="the gateway serves")

    tasks = [request_task(f"{url}/agents/{agent}/message:send", json.loads(body)) for agent, body in MESSAGES]

    texts = [task["artifacts"][0]["parts"][0]["text"] for task in tasks]
    assert texts == ["You said: hello", "78498 primes up to 1000000"]
    assert f"`{texts[1]}`" in (QUEUES / "README.md").read_text()


def serves(url: str, path: str = "/health/live") -> bool:
    """Return True if `url` responds."""
    try:
        return httpx.get(url + path).status_code == 200
    except httpx.HTTPError:
        return False


def request_task(url: str, body: dict[str, Any]) -> dict[str, Any]:
    """Post a SendMessage request and return the task."""
    response = httpx.post(url, json=body, headers=V1, timeout=LIMIT)
    assert response.status_code == 200, response.text
    task: dict[str, Any] = response.json()["task"]
    return task


def request_page(shop: Project, line: str) -> httpx.Response:
    """Send the request of a curl command in the README."""
    program, _, url, *options = shlex.split(line)
    assert program == "curl"
    url = url.replace("http://localhost:8000", shop.url)
    return httpx.post(url, content=options[-1], timeout=LIMIT) if options else httpx.get(url, timeout=LIMIT)


def products(shop: Project) -> set[str]:
    """Return the products of the stored orders."""
    return {order["product"] for order in httpx.get(f"{shop.url}/orders/", timeout=LIMIT).json()["orders"]}
