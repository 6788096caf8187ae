"""Messages to working agents over each binding, to each kind of agent, on real workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from a2a.client import Client
from a2a.helpers import get_message_text
from a2a.types import GetTaskRequest, StreamResponse
from a2a.utils.errors import UnsupportedOperationError
from redis import Redis

from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import (
    BINDINGS,
    collect,
    message_json,
    request,
    rest,
    sdk_client,
    send,
    wait_for_state,
)
from tests.support.clients.bindings import state as state_name
from tests.support.clients.bindings import texts as artifacts_of
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.store.records import states_in
from tests.support.waiting import eventually, eventually_async

pytestmark = pytest.mark.each_kind

APP = "tests.support.agents.steering_agents"
SECONDS = {"A2A_LEASE_TTL": "3", "A2A_REDISPATCH_AFTER": "3", "A2A_CANCEL_GRACE": "5"}

Json = dict[str, Any]


@dataclass
class Site:
    """Fleet with a gateway, a worker and a watcher."""

    fleet: Fleet
    folder: Path
    gateway: Gateway
    worker: Process
    store: SyncStore

    def send(self, agent: str, text: str, task: Json | None = None, *, wait: bool = False) -> Json:
        """Send a message and return the task. If `wait` is true, wait for the end of the turn."""
        body = message_json(text, **({} if task is None else {"taskId": task["id"]}))
        body["configuration"] = {"returnImmediately": not wait}
        answer = rest(self.gateway, "POST", "/message:send", body, agent=agent)
        assert answer.status_code == 200, answer.text
        sent_task: Json = answer.json()["task"]
        return sent_task

    def read(self, agent: str, task: Json) -> Json:
        """Return the current task."""
        current_task: Json = rest(self.gateway, "GET", f"/tasks/{task['id']}", agent=agent).json()
        return current_task

    def start(self, agent: str, text: str = "work") -> Json:
        """Send a first message, wait until the agent works, and return the task."""
        task = self.send(agent, text)
        eventually(lambda: self.claims(task) == 1, what=f"{agent} works")
        return task

    def wait_for_end(self, agent: str, task: Json) -> Json:
        """Wait until the task is terminal or interrupted, and return the task."""
        going_on = ("TASK_STATE_SUBMITTED", "TASK_STATE_WORKING")
        return eventually(
            lambda: current_task if (current_task := self.read(agent, task))["status"]["state"] not in going_on else {},
            what=f"{agent} ends",
        )

    def allow_end(self, task: Json) -> None:
        """Let the task's agent return."""
        (self.folder / f"{task['id']}.may-end").touch()

    def record(self, task: Json, field: str) -> str:
        """Return a field of the task's record."""
        with Redis.from_url(self.fleet.redis.store_url) as redis:
            return (redis.hget(Keys("a2a").task(task["id"]).record, field) or b"").decode()

    def claims(self, task: Json) -> int:
        """Return the number of the claimed run, or 0 if no run is claimed."""
        return int(self.record(task, "run")) if self.record(task, "phase") == "running" else 0

    def states(self, task: Json) -> list[str]:
        """Return the states in the log."""
        return states_in(self.store.run(read_log(Keys("a2a"), task["id"], 0, limit=1000)).entries)


@pytest.fixture(scope="module", params=["prefork", "threads", "asyncio"])
def pool(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, pool: str, broker: str) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("steering")
    with running_fleet(folder, broker, app=APP, TEST_FOLDER=str(folder), **SECONDS) as fleet:
        gateway, worker = fleet.gateway(grpc=True), fleet.worker(pool=pool, concurrency=4)
        fleet.watcher()
        store = SyncStore(fleet.redis.store_url)
        yield Site(fleet, folder, gateway, worker, store)
        store.close()


def results_of(task: Json) -> list[str]:
    """Return the texts of the task's artifacts."""
    return ["".join(part["text"] for part in artifact["parts"]) for artifact in task["artifacts"]]


def text_of(task: Json) -> str:
    """Return the text of the task's last artifact."""
    return results_of(task)[-1]


def history(task: Json) -> list[str]:
    """Return the texts of the task's messages, without the agent's progress."""
    texts = ["".join(part["text"] for part in message["parts"]) for message in task["history"]]
    return [text for text in texts if not text.startswith("heard ")]


@pytest.mark.parametrize("agent", ["listens", "sync-listens", "executor-listens"])
def test_an_agent_reads_the_messages_that_arrive_while_it_works(site: Site, agent: str) -> None:
    task = site.start(agent)

    for text in ("left", "right"):
        assert history(site.send(agent, text, task))[-1] == text
    ended_task = site.send(agent, "done", task, wait=True)

    assert ended_task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(ended_task) == "work left right done"
    assert history(ended_task) == ["work", "left", "right", "done"]
    assert set(site.states(task)) <= {"SUBMITTED", "WORKING", "COMPLETED"}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_blocking_streaming_and_other_senders_over_each_binding(site: Site, binding: str) -> None:
    async with (
        sdk_client(site.gateway, "listens", binding, streaming=False) as client,
        sdk_client(site.gateway, "listens", binding) as streaming,
    ):
        task = await send(client, "work", immediately=True)
        await wait_for_state(client, task.id, "WORKING")

        immediate = await send(client, "left", immediately=True, task_id=task.id)
        blocking_call = asyncio.create_task(send(client, "right", task_id=task.id))
        await eventually_async(lambda: _has(client, task.id, "right"), what="the message has arrived")
        stream: list[StreamResponse] = await collect(streaming.send_message(request("done", task_id=task.id)))

        assert state_name(immediate) == "WORKING"
        assert immediate.history[-1].parts[0].text == "left"
        ended_task = await blocking_call
        assert (state_name(ended_task), len(artifacts_of(ended_task))) == ("COMPLETED", 1)
        assert stream[0].task.id == task.id
        assert stream[-1].status_update.status.state == ended_task.status.state
        assert artifacts_of(ended_task) == ["work left right done"]


async def _has(client: Client, task_id: str, text: str) -> bool:
    task = await client.get_task(GetTaskRequest(id=task_id))
    return any(text == get_message_text(message) for message in task.history)


def test_the_messages_of_two_clients_at_once_are_read_once_each(site: Site) -> None:
    task = site.start("listens")
    words = [f"{client}{number}" for client in "ab" for number in range(10)]

    with ThreadPoolExecutor(2) as clients:
        list(clients.map(lambda word: site.send("listens", word, task), words))
    ended_task = site.send("listens", "done", task, wait=True)

    words_read = text_of(ended_task).split()
    assert sorted(words_read) == sorted(["work", *words, "done"])
    assert words_read == history(ended_task), "the agent reads in the order of the history"


def test_a_message_that_the_agent_does_not_read_becomes_its_next_turn(site: Site) -> None:
    task = site.start("ignores", "first")
    for text in ("second", "third"):
        site.send("ignores", text, task)

    with ThreadPoolExecutor(1) as thread:
        blocking_call = thread.submit(site.send, "ignores", "fourth", task, wait=True)
        eventually(lambda: "fourth" in history(site.read("ignores", task)), what="it has arrived")
        site.allow_end(task)
        ended_task = blocking_call.result()

    assert ended_task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert ["".join(p["text"] for p in a["parts"]) for a in ended_task["artifacts"]] == [
        "first",
        "second",
        "third",
        "fourth",
    ]
    assert site.record(task, "turn") == "4"


def test_a_message_in_the_moment_in_which_the_agent_returns_is_not_lost(site: Site) -> None:
    for _ in range(5):
        task = site.start("polls", "first")
        with ThreadPoolExecutor(2) as threads:
            send_future = threads.submit(
                rest, site.gateway, "POST", "/message:send", message_json("second", taskId=task["id"]), agent="polls"
            )
            threads.submit(site.allow_end, task)
        response = send_future.result()
        ended_task = site.wait_for_end("polls", task)

        texts = results_of(ended_task)
        if response.status_code == 200:
            assert texts in (["first second"], ["first", "second"])
            assert history(ended_task) == ["first", "second"]
        else:
            assert "has ended" in response.text
            assert texts == ["first"]


def test_an_agent_that_asks_reads_its_messages_again_after_the_answer(site: Site) -> None:
    task = site.start("asks")
    question_task = site.send("asks", "left", task, wait=True)
    assert question_task["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"

    ended_task = site.send("asks", "answer", task, wait=True)

    assert text_of(ended_task) == "work left answer"


def test_a_cancel_concurrent_with_a_message_ends_the_task(site: Site) -> None:
    task = site.start("listens")
    with ThreadPoolExecutor(2) as threads:
        threads.submit(rest, site.gateway, "POST", f"/tasks/{task['id']}:cancel", agent="listens")
        threads.submit(
            rest, site.gateway, "POST", "/message:send", message_json("left", taskId=task["id"]), agent="listens"
        )

    ended_task = site.wait_for_end("listens", task)

    assert ended_task["status"]["state"] == "TASK_STATE_CANCELED"
    assert site.states(task)[-1] == "CANCELED"


@pytest.mark.parametrize("agent", ["yields-to-messages", "sync-yields-to-messages", "executor-yields"])
def test_a_message_interrupts_an_agent(site: Site, agent: str) -> None:
    task = site.start(agent)
    site.send(agent, "work on this", task)
    eventually(lambda: site.claims(task) == 2, what="the second turn works")

    ended_task = site.send(agent, "finish", task, wait=True)

    assert ended_task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(ended_task) == ("finish" if agent == "executor-yields" else "3 finish")
    assert history(ended_task) == ["work", "work on this", "finish"]
    assert set(site.states(task)) <= {"SUBMITTED", "WORKING", "COMPLETED"}


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_interrupting_message_over_each_binding(site: Site, binding: str) -> None:
    async with (
        sdk_client(site.gateway, "yields-to-messages", binding, streaming=False) as client,
        sdk_client(site.gateway, "yields-to-messages", binding) as streaming,
    ):
        task = await send(client, "work", immediately=True)
        await wait_for_state(client, task.id, "WORKING")
        immediate = await send(client, "work on this", immediately=True, task_id=task.id)
        stream = await collect(streaming.send_message(request("finish", task_id=task.id)))
        ended_task = await wait_for_state(client, task.id, "COMPLETED")

        assert state_name(immediate) == "WORKING"
        assert artifacts_of(ended_task)[0].endswith(" finish")
        assert stream[-1].status_update.status.state == ended_task.status.state


@pytest.mark.parametrize("binding", BINDINGS)
async def test_an_agent_may_refuse_messages_while_it_works(site: Site, binding: str) -> None:
    async with sdk_client(site.gateway, "refuses", binding, streaming=False) as client:
        task = await send(client, "work", immediately=True)
        with pytest.raises(UnsupportedOperationError, match="The task is working and accepts no message"):
            await send(client, "left", task_id=task.id)
        site.allow_end({"id": task.id})

        ended_task = await wait_for_state(client, task.id, "COMPLETED")
        assert len(ended_task.history) == 1


def test_without_the_option_a_message_waits_for_a_question(site: Site) -> None:
    task = site.start("queues")
    waiting_task = site.send("queues", "this", task)
    assert history(waiting_task) == ["work"]
    site.allow_end(task)

    eventually(lambda: site.record(task, "turn") == "2", what="its turn begins")
    ended_task = site.wait_for_end("queues", task)

    assert text_of(ended_task) == "work this"


def test_a_killed_worker_loses_no_message_read_or_not(tmp_path: Path, pool: str, broker: str) -> None:
    with running_fleet(tmp_path, broker, app=APP, TEST_FOLDER=str(tmp_path), **SECONDS) as fleet:
        gateway, worker = fleet.gateway(), fleet.worker(pool=pool, concurrency=2)
        fleet.watcher()
        store = SyncStore(fleet.redis.store_url)
        site = Site(fleet, tmp_path, gateway, worker, store)
        task = site.start("listens")
        site.send("listens", "left", task)
        eventually(lambda: "heard left" in str(site.read("listens", task)), what="it is read")
        os.killpg(worker.pid, signal.SIGSTOP)  # so that the next message stays unread
        site.send("listens", "right", task)
        worker.kill()
        fleet.worker(pool=pool, concurrency=2)

        ended_task = site.send("listens", "done", task, wait=True)

        assert ended_task["status"]["state"] == "TASK_STATE_COMPLETED"
        assert text_of(ended_task) == "work left right done"
        assert site.record(task, "attempt") == "2"
        store.close()


@pytest.mark.parametrize("agent", ["ignores-interrupts"])
def test_an_agent_that_ignores_its_interruption_is_ended_with_its_process(site: Site, pool: str, agent: str) -> None:
    if pool != "prefork":  # in other pools, the event loop of all runs is blocked
        return
    task = site.start(agent)

    ended_task = site.send(agent, "finish", task, wait=True)

    assert ended_task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert text_of(ended_task) == "finish"
    assert site.record(task, "turn") == "2"
