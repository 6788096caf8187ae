"""compose/ in containers: start as in docs/deployment.md, load through nginx, containers that die, and shutdown."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from a2a_celery.lifecycle import EventId
from tests.support.clients import V1, frames, message_json, rest, sdk_client, send, state, texts
from tests.support.waiting import eventually
from workers.story import WORDS

from .deployment import PURPOSES, Deployment, deployment, documented, documented_commands
from .engine import run

STORY = "".join(f"{word} " for word in WORDS)
SECRET = "what the client said, 5b1f7e"


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with deployment(Deployment(tmp_path_factory.mktemp("compose") / "checkout")) as deployed:
        yield deployed


def test_each_command_of_the_page_is_run_here() -> None:
    assert [command for what in PURPOSES for command in documented(what)] == documented_commands()


def begin(deployed: Deployment, agent: str, text: str) -> str:
    """Send a message through nginx. Return the task's id without waiting for the task."""
    body = message_json(text) | {"configuration": {"returnImmediately": True}}
    answer = rest(deployed, "POST", "/message:send", body, agent=agent)
    assert answer.status_code == 200, answer.text
    task_id: str = answer.json()["task"]["id"]
    return task_id


def read(deployed: Deployment, agent: str, task_id: str) -> dict[str, Any]:
    """Return the current task through nginx."""
    task: dict[str, Any] = rest(deployed, "GET", f"/tasks/{task_id}", agent=agent).json()
    return task


def is_in(deployed: Deployment, agent: str, task_id: str, name: str) -> bool:
    return bool(read(deployed, agent, task_id)["status"]["state"] == f"TASK_STATE_{name}")


def listed(deployed: Deployment, agent: str, name: str) -> set[str]:
    """Return the ids of the tasks of `agent` in the state `name`."""
    query = f"/tasks?pageSize=100&status=TASK_STATE_{name}"
    return {task["id"] for task in rest(deployed, "GET", query, agent=agent).json()["tasks"]}


def test_every_service_is_healthy_and_the_doctor_finds_nothing_wrong(deployed: Deployment) -> None:
    deployed.wait_until_healthy()
    [doctor] = documented("doctor")

    output = deployed.run(doctor)

    assert "nothing wrong" in output
    assert len(deployed.containers("gateway")) == len(deployed.containers("watcher")) == 2
    assert len(deployed.containers("worker")) == 4


@pytest.mark.parametrize("service", ["gateway", "worker", "watcher", "flower"])
def test_ours_are_no_root_and_write_nowhere(deployed: Deployment, service: str) -> None:
    look = "import os; print(os.getuid()); open('/tmp/x', 'w'); open('/app/x', 'w')"
    with pytest.raises(AssertionError, match="Read-only file system") as failed:
        deployed.compose("exec", "-T", service, "python", "-c", f'"{look}"')

    assert "10001" in str(failed.value)
    [container, *_] = deployed.containers(service)
    host = deployed.inspect(container)["HostConfig"]
    assert (host["CapDrop"], host["ReadonlyRootfs"]) == (["ALL"], True)
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"


@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/ui/", "/ui"])
def test_what_is_for_operators_is_not_passed_on(deployed: Deployment, path: str) -> None:
    assert httpx.get(f"{deployed.url}{path}").status_code == 404
    assert httpx.get(f"{deployed.url}/health/live").status_code == 200


def test_nginx_has_a_small_file_system_in_memory(deployed: Deployment) -> None:
    [nginx] = deployed.containers("nginx")
    assert deployed.inspect(nginx)["HostConfig"]["Tmpfs"] == {"/tmp": "size=16m"}


def test_the_secret_is_in_no_environment(deployed: Deployment) -> None:
    secret = (deployed.folder / "compose/secrets/secret_key").read_text().strip()

    everything = json.dumps([deployed.inspect(container) for container in deployed.containers()])

    assert secret not in everything
    assert "/run/secrets/secret_key" in everything


def test_a_hundred_tasks_outlive_a_worker(deployed: Deployment) -> None:
    with ThreadPoolExecutor(10) as pool:
        tasks = set(pool.map(lambda _: begin(deployed, "story", SECRET), range(100)))
    assert len(tasks) == 100
    eventually(lambda: len(listed(deployed, "story", "WORKING")) >= 8, every=0.5, what="they are told")

    [victim, *_] = deployed.containers("worker")
    deployed.kill(victim)

    eventually(lambda: listed(deployed, "story", "COMPLETED") == tasks, every=0.5, what="all are told")
    assert len(deployed.containers("worker")) == 3
    for task_id in tasks:
        [artifact] = read(deployed, "story", task_id)["artifacts"]
        assert "".join(part["text"] for part in artifact["parts"]) == STORY
    flower_knows(deployed, tasks)


def flower_knows(deployed: Deployment, tasks: set[str]) -> None:
    """Require that Flower finds each task's runs by the task's id, shows that a run succeeded, and shows no message."""

    def of_tasks() -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {task_id: [] for task_id in tasks}
        for one in sorted(deployed.ask_flower("/api/tasks").values(), key=lambda one: one["uuid"]):
            task_id = one["uuid"].rpartition(".")[0]
            if task_id in found:
                found[task_id].append(one)
        return found

    def over() -> bool:
        return all(any(one["state"] == "SUCCESS" for one in runs) for runs in of_tasks().values())

    eventually(over, every=0.5, what="Flower has heard of all")
    runs = of_tasks()
    assert {one["name"] for each in runs.values() for one in each} == {"a2a.story"}
    assert any(len(each) > 1 for each in runs.values()), "the killed worker's tasks have a second run"
    for task_id, each in runs.items():
        for one in each:
            number = int(one["uuid"].rpartition(".")[2])
            assert (one["args"], one["kwargs"]) == (f"('{task_id}', {number})", "{}")
        assert [one["runtime"] > 2 for one in each if one["state"] == "SUCCESS"] == [True], each
    assert SECRET not in json.dumps(deployed.ask_flower("/api/tasks"))


def test_flowers_page_finds_a_task_by_its_id(deployed: Deployment, browser: Chrome, tmp_path: Path) -> None:
    tasks, asked = begin(deployed, "echo", SECRET), begin(deployed, "booking", SECRET)
    eventually(lambda: is_in(deployed, "booking", asked, "INPUT_REQUIRED"), every=0.5)
    eventually(lambda: is_in(deployed, "echo", tasks, "COMPLETED"), every=0.5)
    rows = ((tasks, "a2a.echo", "SUCCESS"), (asked, "a2a.booking", "INPUT_REQUIRED"))

    def flower_has_received() -> bool:
        known = deployed.ask_flower("/api/tasks")
        return all(known.get(f"{task_id}.1", {}).get("state") == shown for task_id, _, shown in rows)

    eventually(flower_has_received, every=0.5, what="Flower has heard of both")
    user_and_password = (deployed.folder / "compose/secrets/flower_auth").read_text().strip()
    browser.get(deployed.flower.replace("://", f"://{user_and_password}@"))

    for task_id, name, shown in rows:
        row = found_on_its_page(deployed, browser, task_id)
        assert (name in row, f"{task_id}.1" in row, shown in row) == (True, True, True), row
        assert SECRET not in browser.page_source
    browser.save_screenshot(str(tmp_path / "flower.png"))


def found_on_its_page(deployed: Deployment, browser: Chrome, task_id: str) -> str:
    """Type the id into the search of Flower's table and return the text of the only row."""
    browser.get(f"{deployed.flower}/tasks")
    box = browser.find_element(By.CSS_SELECTOR, "input[type=search]")
    box.clear()  # Flower remembers the last search
    box.send_keys(task_id)
    return eventually(lambda: only_run(browser, task_id), every=0.2, what=f"one row is left, {task_id}")


def only_run(browser: Chrome, task_id: str) -> str:
    """Return the text of the table's only row, or "" while the table has other rows."""
    try:
        rows = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#tasks-table tbody tr")]
    except StaleElementReferenceException:  # the row is being drawn
        return ""
    return rows[0] if len(rows) == 1 and task_id in rows[0] else ""


def test_streams_continue_after_the_loss_of_their_gateway(deployed: Deployment) -> None:
    deployed.compose("up", "-d", "--scale", "worker=4")
    deployed.wait_until_ready()

    cut = asyncio.run(follow_while_a_gateway_dies(deployed, streams=12))

    assert cut > 0


async def follow_while_a_gateway_dies(deployed: Deployment, streams: int) -> int:
    """Require that each stream receives its task's events once and in order, over any number of connections.

    Returns:
        The number of interrupted streams.
    """
    under_way = asyncio.Semaphore(0)

    async def follow() -> int:
        seen: list[str] = []
        words: list[str] = []
        cuts, state, path, body, headers = 0, "", "/message:stream", message_json("15"), dict(V1)
        async with httpx.AsyncClient(timeout=60) as http:
            while state != "TASK_STATE_COMPLETED":
                url = f"{deployed.url}/agents/slow{path}"
                try:
                    async with http.stream("POST", url, json=body, headers=headers) as response:
                        assert response.status_code == 200, (await response.aread()).decode()
                        async for frame in frames(response):
                            seen.append(frame.id)
                            event = frame.data
                            if "task" in event:
                                path, body = f"/tasks/{event['task']['id']}:subscribe", None
                            if "artifactUpdate" in event:
                                words += [part["text"] for part in event["artifactUpdate"]["artifact"]["parts"]]
                            if len(seen) == 3 and not cuts:
                                under_way.release()
                            state = event.get("statusUpdate", {}).get("status", {}).get("state", state)
                except httpx.HTTPError:
                    cuts += 1
                    assert cuts < 20
                    await asyncio.sleep(0.1)
                headers["Last-Event-ID"] = seen[-1]
        assert [EventId.parse(event_id).version for event_id in seen] == list(range(1, len(seen) + 1))
        assert words == ["15 steps done"]
        return cuts

    following = [asyncio.create_task(follow()) for _ in range(streams)]
    for _ in range(streams):
        await under_way.acquire()
    # nginx may send all streams that arrive together to one gateway, because it resolves the name only once for them
    victim = max(deployed.containers("gateway"), key=deployed.open_streams)
    await asyncio.to_thread(deployed.kill, victim)
    return sum(1 for cuts in await asyncio.gather(*following) if cuts)


async def test_grpc_goes_through_nginx(deployed: Deployment) -> None:
    async with sdk_client(deployed, "echo", "GRPC", streaming=False) as client:
        task = await send(client, "hello")

    assert (state(task), texts(task)) == ("COMPLETED", ["hello"])


def test_what_dies_is_started_again(deployed: Deployment) -> None:
    [watcher, *_] = deployed.containers("watcher")
    before = deployed.inspect(watcher)["State"]["StartedAt"]
    # all processes except Docker's init and this one
    others = "[p for p in os.listdir('/proc') if p.isdigit() and p not in ('1', str(os.getpid()))]"
    deadly = f"import os; [os.kill(int(p), 9) for p in {others}]"

    run(f'docker exec {watcher} python -c "{deadly}"', deployed.folder, deployed.env)

    def back() -> bool:
        now = deployed.inspect(watcher)["State"]
        return bool(now["Running"] and now["StartedAt"] != before)

    eventually(back, every=0.5, what="the watcher is back")


def test_redis_dies_and_its_tasks_do_not(deployed: Deployment) -> None:
    task_id = begin(deployed, "echo", "kept")
    eventually(lambda: is_in(deployed, "echo", task_id, "COMPLETED"))
    [redis] = deployed.containers("redis")

    deployed.kill(redis)
    deployed.compose("up", "-d", "--scale", "worker=4")

    deployed.wait_until_ready()
    assert is_in(deployed, "echo", task_id, "COMPLETED")


def test_a_worker_that_is_stopped_finishes_what_it_has_begun(deployed: Deployment) -> None:
    tasks = [begin(deployed, "slow", "6") for _ in range(4)]
    eventually(lambda: listed(deployed, "slow", "WORKING") == set(tasks), every=0.5, what="all have begun")
    workers = deployed.containers("worker")

    deployed.compose("stop", "worker")

    assert listed(deployed, "slow", "COMPLETED") >= set(tasks)
    assert {deployed.inspect(worker)["State"]["ExitCode"] for worker in workers} == {0}


def test_rabbitmq_may_be_the_broker_and_nothing_is_left_of_all_this(deployed: Deployment) -> None:
    [up, down] = documented("rabbitmq")
    deployed.run(up)
    deployed.wait_until_ready()
    [worker, *_] = deployed.containers("worker")

    tasks = [begin(deployed, "echo", "hello") for _ in range(10)]

    eventually(lambda: listed(deployed, "echo", "COMPLETED") >= set(tasks), every=0.5, what="all are done")
    assert "CELERY_BROKER_URL=amqp://guest:guest@rabbitmq:5672//" in deployed.inspect(worker)["Config"]["Env"]
    deployed.run(down)
    assert deployed.containers(all_of_them=True) == []
