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
from tests.support.clients.bindings import V1, frames, message_json, rest, sdk_client, send, state, texts
from tests.support.waiting import LIMIT, eventually
from workers.story import WORDS

from .deployment import PURPOSES, Deployment, commands_for, documented_commands, run_deployment
from .engine import run

STORY = "".join(f"{word} " for word in WORDS)
SECRET = "what the client said, 5b1f7e"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with run_deployment(Deployment(tmp_path_factory.mktemp("compose") / "checkout")) as deployment:
        yield deployment


def test_each_command_of_the_page_is_run_here() -> None:
    assert [command for what in PURPOSES for command in commands_for(what)] == documented_commands()


def begin(deployment: Deployment, agent: str, text: str) -> str:
    """Send a message through nginx. Return the task's id without waiting for the task."""
    body = message_json(text) | {"configuration": {"returnImmediately": True}}
    answer = rest(deployment, "POST", "/message:send", body, agent=agent)
    assert answer.status_code == 200, answer.text
    task_id: str = answer.json()["task"]["id"]
    return task_id


def read(deployment: Deployment, agent: str, task_id: str) -> dict[str, Any]:
    """Return the current task through nginx."""
    task: dict[str, Any] = rest(deployment, "GET", f"/tasks/{task_id}", agent=agent).json()
    return task


def is_in(deployment: Deployment, agent: str, task_id: str, name: str) -> bool:
    return bool(read(deployment, agent, task_id)["status"]["state"] == f"TASK_STATE_{name}")


def task_ids(deployment: Deployment, agent: str, name: str) -> set[str]:
    """Return the ids of the tasks of `agent` in the state `name`."""
    query = f"/tasks?pageSize=100&status=TASK_STATE_{name}"
    return {task["id"] for task in rest(deployment, "GET", query, agent=agent).json()["tasks"]}


def test_every_service_is_healthy_and_the_doctor_finds_nothing_wrong(deployment: Deployment) -> None:
    deployment.wait_until_healthy()
    [doctor] = commands_for("doctor")
    outputs = [""]

    def finds_nothing_wrong() -> bool:
        try:
            outputs[0] = deployment.run(doctor)
        except AssertionError as e:  # a worker on a busy machine may need longer than the command waits for its reply
            outputs[0] = str(e)
        return "nothing wrong" in outputs[0]

    try:
        eventually(finds_nothing_wrong, every=1)
    except AssertionError:
        raise AssertionError(outputs[0]) from None

    assert len(deployment.containers("gateway")) == len(deployment.containers("watcher")) == 2
    assert len(deployment.containers("worker")) == 4


@pytest.mark.parametrize("service", ["gateway", "worker", "watcher", "flower"])
def test_ours_are_no_root_and_write_nowhere(deployment: Deployment, service: str) -> None:
    look = "import os; print(os.getuid()); open('/tmp/x', 'w'); open('/app/x', 'w')"
    with pytest.raises(AssertionError, match="Read-only file system") as exc_info:
        deployment.compose("exec", "-T", service, "python", "-c", f'"{look}"')

    assert "10001" in str(exc_info.value)
    [container, *_] = deployment.containers(service)
    host = deployment.inspect(container)["HostConfig"]
    assert (host["CapDrop"], host["ReadonlyRootfs"]) == (["ALL"], True)
    assert host["Memory"] > 0
    assert host["NanoCpus"] > 0
    assert host["RestartPolicy"]["Name"] == "unless-stopped"


@pytest.mark.parametrize("path", ["/metrics", "/health/ready", "/ui/", "/ui"])
def test_what_is_for_operators_is_not_passed_on(deployment: Deployment, path: str) -> None:
    assert httpx.get(f"{deployment.url}{path}").status_code == 404
    assert httpx.get(f"{deployment.url}/health/live").status_code == 200


def test_nginx_has_a_small_file_system_in_memory(deployment: Deployment) -> None:
    [nginx] = deployment.containers("nginx")
    assert deployment.inspect(nginx)["HostConfig"]["Tmpfs"] == {"/tmp": "size=16m"}


def test_the_secret_is_in_no_environment(deployment: Deployment) -> None:
    secret = (deployment.folder / "compose/secrets/secret_key").read_text().strip()

    contents = json.dumps([deployment.inspect(container) for container in deployment.containers()])

    assert secret not in contents
    assert "/run/secrets/secret_key" in contents


def test_a_hundred_tasks_outlive_a_worker(deployment: Deployment) -> None:
    with ThreadPoolExecutor(10) as pool:
        tasks = set(pool.map(lambda _: begin(deployment, "story", SECRET), range(100)))
    assert len(tasks) == 100
    eventually(lambda: len(task_ids(deployment, "story", "WORKING")) >= 8, every=0.5, what="8 tasks are WORKING")

    [victim, *_] = deployment.containers("worker")
    deployment.kill(victim)

    eventually(lambda: task_ids(deployment, "story", "COMPLETED") == tasks, every=0.5, what="all tasks are COMPLETED")
    assert len(deployment.containers("worker")) == 3
    for task_id in tasks:
        [artifact] = read(deployment, "story", task_id)["artifacts"]
        assert "".join(part["text"] for part in artifact["parts"]) == STORY
    flower_knows(deployment, tasks)


def flower_knows(deployment: Deployment, tasks: set[str]) -> None:
    """Require that Flower finds each task's runs by the task's id, shows that a run succeeded, and shows no message."""

    def read_runs() -> dict[str, list[dict[str, Any]]]:
        runs_by_task: dict[str, list[dict[str, Any]]] = {task_id: [] for task_id in tasks}
        for item in sorted(deployment.ask_flower("/api/tasks").values(), key=lambda item: item["uuid"]):
            task_id = item["uuid"].rpartition(".")[0]
            if task_id in runs_by_task:
                runs_by_task[task_id].append(item)
        return runs_by_task

    def over() -> bool:
        return all(any(item["state"] == "SUCCESS" for item in runs) for runs in read_runs().values())

    eventually(over, every=0.5, what="Flower shows all tasks")
    runs = read_runs()
    assert {item["name"] for each in runs.values() for item in each} == {"a2a.story"}
    assert any(len(each) > 1 for each in runs.values()), "the killed worker's tasks have a second run"
    for task_id, each in runs.items():
        for item in each:
            number = int(item["uuid"].rpartition(".")[2])
            assert (item["args"], item["kwargs"]) == (f"('{task_id}', {number})", "{}")
        assert [item["runtime"] > 2 for item in each if item["state"] == "SUCCESS"] == [True], each
    assert SECRET not in json.dumps(deployment.ask_flower("/api/tasks"))


def test_flowers_page_finds_a_task_by_its_id(deployment: Deployment, browser: Chrome, tmp_path: Path) -> None:
    tasks, booking_ids = begin(deployment, "echo", SECRET), begin(deployment, "booking", SECRET)
    eventually(lambda: is_in(deployment, "booking", booking_ids, "INPUT_REQUIRED"), every=0.5)
    eventually(lambda: is_in(deployment, "echo", tasks, "COMPLETED"), every=0.5)
    rows = ((tasks, "a2a.echo", "SUCCESS"), (booking_ids, "a2a.booking", "INPUT_REQUIRED"))

    def flower_has_received() -> bool:
        flower_tasks = deployment.ask_flower("/api/tasks")
        return all(
            flower_tasks.get(f"{task_id}.1", {}).get("state") == expected_state for task_id, _, expected_state in rows
        )

    eventually(flower_has_received, every=0.5, what="Flower shows both tasks")
    user_and_password = (deployment.folder / "compose/secrets/flower_auth").read_text().strip()
    browser.get(deployment.flower.replace("://", f"://{user_and_password}@"))

    for task_id, name, expected_state in rows:
        row = found_on_its_page(deployment, browser, task_id)
        assert (name in row, f"{task_id}.1" in row, expected_state in row) == (True, True, True), row
        assert SECRET not in browser.page_source
    browser.save_screenshot(str(tmp_path / "flower.png"))


def found_on_its_page(deployment: Deployment, browser: Chrome, task_id: str) -> str:
    """Type the id into the search of Flower's table and return the text of the only row."""
    browser.get(f"{deployment.flower}/tasks")
    box = browser.find_element(By.CSS_SELECTOR, "input[type=search]")
    box.clear()  # Flower remembers the last search
    box.send_keys(task_id)
    return eventually(lambda: only_run(browser, task_id), every=0.2, what=f"one row is left, {task_id}")


def only_run(browser: Chrome, task_id: str) -> str:
    """Return the text of the table's only row, or "" if the table has other rows."""
    try:
        rows = [row.text for row in browser.find_elements(By.CSS_SELECTOR, "#tasks-table tbody tr")]
    except StaleElementReferenceException:  # the row is being drawn
        return ""
    return rows[0] if len(rows) == 1 and task_id in rows[0] else ""


def test_streams_continue_after_the_loss_of_their_gateway(deployment: Deployment) -> None:
    deployment.compose("up", "-d", "--scale", "worker=4")
    deployment.wait_until_ready()

    cut_streams = asyncio.run(follow_while_a_gateway_dies(deployment, streams=12))

    assert cut_streams > 0


async def follow_while_a_gateway_dies(deployment: Deployment, streams: int) -> int:
    """Require that each stream receives its task's events once and in order, over any number of connections.

    Returns:
        The number of interrupted streams.
    """
    under_way = asyncio.Semaphore(0)

    async def follow() -> int:
        event_ids: list[str] = []
        words: list[str] = []
        cuts, state, path, body, headers = 0, "", "/message:stream", message_json("15"), dict(V1)
        async with httpx.AsyncClient(timeout=LIMIT) as http:
            while state != "TASK_STATE_COMPLETED":
                url = f"{deployment.url}/agents/slow{path}"
                try:
                    async with http.stream("POST", url, json=body, headers=headers) as response:
                        assert response.status_code == 200, (await response.aread()).decode()
                        async for frame in frames(response):
                            event_ids.append(frame.id)
                            event = frame.data
                            if "task" in event:
                                path, body = f"/tasks/{event['task']['id']}:subscribe", None
                            if "artifactUpdate" in event:
                                words += [part["text"] for part in event["artifactUpdate"]["artifact"]["parts"]]
                            if len(event_ids) == 3 and not cuts:
                                under_way.release()
                            state = event.get("statusUpdate", {}).get("status", {}).get("state", state)
                except httpx.HTTPError:
                    cuts += 1
                    assert cuts < 20
                    await asyncio.sleep(0.1)
                headers["Last-Event-ID"] = event_ids[-1]
        assert [EventId.parse(event_id).version for event_id in event_ids] == list(range(1, len(event_ids) + 1))
        assert words == ["15 steps done"]
        return cuts

    follow_tasks = [asyncio.create_task(follow()) for _ in range(streams)]
    for _ in range(streams):
        await under_way.acquire()
    # nginx may send all streams that arrive together to one gateway, because it resolves the name only once for them
    victim = max(deployment.containers("gateway"), key=deployment.open_streams)
    await asyncio.to_thread(deployment.kill, victim)
    return sum(1 for cuts in await asyncio.gather(*follow_tasks) if cuts)


async def test_grpc_goes_through_nginx(deployment: Deployment) -> None:
    async with sdk_client(deployment, "echo", "GRPC", streaming=False) as client:
        task = await send(client, "hello")

    assert (state(task), texts(task)) == ("COMPLETED", ["hello"])


def test_what_dies_is_started_again(deployment: Deployment) -> None:
    [watcher, *_] = deployment.containers("watcher")
    start_time = deployment.inspect(watcher)["State"]["StartedAt"]
    # all processes except Docker's init and this one
    others = "[p for p in os.listdir('/proc') if p.isdigit() and p not in ('1', str(os.getpid()))]"
    deadly = f"import os; [os.kill(int(p), 9) for p in {others}]"

    run(f'docker exec {watcher} python -c "{deadly}"', deployment.folder, deployment.env)

    def back() -> bool:
        container_state = deployment.inspect(watcher)["State"]
        return bool(container_state["Running"] and container_state["StartedAt"] != start_time)

    eventually(back, every=0.5, what="the watcher is back")


def test_redis_dies_and_its_tasks_do_not(deployment: Deployment) -> None:
    task_id = begin(deployment, "echo", "kept")
    eventually(lambda: is_in(deployment, "echo", task_id, "COMPLETED"))
    [redis] = deployment.containers("redis")

    deployment.kill(redis)
    deployment.compose("up", "-d", "--scale", "worker=4")

    deployment.wait_until_ready()
    assert is_in(deployment, "echo", task_id, "COMPLETED")


def test_a_worker_that_is_stopped_finishes_what_it_has_begun(deployment: Deployment) -> None:
    tasks = [begin(deployment, "slow", "6") for _ in range(4)]
    eventually(lambda: task_ids(deployment, "slow", "WORKING") == set(tasks), every=0.5, what="all have begun")
    workers = deployment.containers("worker")

    deployment.compose("stop", "worker")

    assert task_ids(deployment, "slow", "COMPLETED") >= set(tasks)
    assert {deployment.inspect(worker)["State"]["ExitCode"] for worker in workers} == {0}


def test_rabbitmq_may_be_the_broker_and_nothing_is_left_of_all_this(deployment: Deployment) -> None:
    [up, down] = commands_for("rabbitmq")
    deployment.run(up)
    deployment.wait_until_ready()
    [worker, *_] = deployment.containers("worker")

    tasks = [begin(deployment, "echo", "hello") for _ in range(10)]

    eventually(lambda: task_ids(deployment, "echo", "COMPLETED") >= set(tasks), every=0.5, what="all are done")
    assert "CELERY_BROKER_URL=amqp://guest:guest@rabbitmq:5672//" in deployment.inspect(worker)["Config"]["Env"]
    deployment.run(down)
    assert deployment.containers(all_of_them=True) == []
