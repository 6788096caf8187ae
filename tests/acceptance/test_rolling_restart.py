"""Rolling restart under load. No task is lost or fails, and every stream is complete."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import Task, TaskState, TaskStatusUpdateEvent

from a2a_celery.lifecycle import EventId, is_terminal
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.log.pages import read_log
from tests.support.clients.bindings import V1, message_json
from tests.support.processes.fleet import Fleet, Process, running_fleet
from tests.support.waiting import LIMIT, eventually, eventually_async

pytestmark = pytest.mark.nightly

ENDED = ("COMPLETED", "FAILED", "CANCELED", "REJECTED")

JOBS = (("echo", "hi"), ("once-only", "2"), ("worth-another", "2 2 2 2 2"), ("pace", "12 0.2"), ("sync-echo", "hi"))


class Clients:
    """Clients of two gateways. If one gateway does not respond, the client repeats the request at the other."""

    def __init__(self, fleet: Fleet) -> None:
        self.gateways = [fleet.gateway(), fleet.gateway()]
        self.stopping = False
        self.known: dict[str, str] = {}  # agent by task id
        self.resumed = 0
        self.streaming: Counter[str] = Counter()  # open streams by gateway
        self._turns = itertools.count()

    def url(self, agent: str) -> str:
        return f"{self.gateways[next(self._turns) % 2].url}/agents/{agent}"

    async def work(self, http: httpx.AsyncClient) -> None:
        """Send messages one after the other until `stopping` is true, to different agents and with different
        operations. Wait until each task has finished."""
        for number in itertools.count():
            if self.stopping:
                return
            agent, text = JOBS[number % len(JOBS)]
            if number % 3 == 0:
                await self._stream(http, agent, text)
            else:
                await self._send(http, agent, text, immediately=number % 3 == 1)

    async def _send(self, http: httpx.AsyncClient, agent: str, text: str, *, immediately: bool) -> None:
        body = message_json(text) | {"configuration": {"returnImmediately": immediately}}

        async def try_to_send() -> Any:
            try:
                answer = await http.post(f"{self.url(agent)}/message:send", json=body)
            except httpx.TransportError:  # the request may have created a task, which must be COMPLETED too
                return None
            assert answer.status_code == 200, answer.text
            return answer.json()["task"]

        task = await eventually_async(try_to_send, what=f"{agent} is accepted")
        self.known[task["id"]] = agent

        async def has_ended() -> bool:
            try:
                answer = await http.get(f"{self.url(agent)}/tasks/{task['id']}")
            except httpx.TransportError:
                return False
            assert answer.status_code == 200, answer.text
            return str(answer.json()["status"]["state"]).removeprefix("TASK_STATE_") in ENDED

        await eventually_async(has_ended, what=f"{agent} ends")

    @asynccontextmanager
    async def _open_stream(self, url: str) -> AsyncIterator[None]:
        self.streaming[url.partition("/agents/")[0]] += 1
        try:
            yield
        finally:
            self.streaming[url.partition("/agents/")[0]] -= 1

    async def _stream(self, http: httpx.AsyncClient, agent: str, text: str) -> None:
        """Read a complete stream over both gateways, and require every event exactly once."""
        ids: list[str] = []
        task_id = ""
        last: Any = {}
        while str(last.get("statusUpdate", {}).get("status", {}).get("state"))[11:] not in ENDED:
            url = self.url(agent)
            call = (
                http.stream("POST", f"{url}/message:stream", json=message_json(text))
                if not ids
                else http.stream("POST", f"{url}/tasks/{task_id}:subscribe", headers={"Last-Event-ID": ids[-1]})
            )
            try:
                async with call as response, self._open_stream(url):
                    assert response.status_code == 200, (await response.aread()).decode()
                    self.resumed += bool(ids)
                    async for line in response.aiter_lines():
                        if line.startswith("id:"):
                            ids.append(line[3:].strip())
                        elif line.startswith("data:"):
                            last = json.loads(line[5:])
                            task_id = task_id or last["task"]["id"]
                            self.known[task_id] = agent
            except httpx.TransportError:
                await asyncio.sleep(0.2)
        assert [EventId.parse(event_id).version for event_id in ids] == list(range(1, len(ids) + 1))


def replace_process(fleet: Fleet, old: Process, new: Process) -> Process:
    """Stop `old` with SIGTERM, require that it exits without a traceback, and return `new`."""
    old.signal(15)
    eventually(lambda: not old.is_running, what=f"{old.name} is gone: {old.output()[-2000:]}")
    assert "Traceback" not in old.output(), old.output()[-3000:]
    return new


def restart_all(fleet: Fleet, clients: Clients, workers: list[Process], watchers: list[Process]) -> None:
    for pool, old in zip(("prefork", "threads"), workers, strict=True):
        replace_process(fleet, old, fleet.worker(pool=pool, concurrency=3))
    for n in (0, 1):
        old = clients.gateways[n]
        new = fleet.gateway()
        eventually(lambda url=old.url: clients.streaming[url] > 1, what="it has streams to cut")
        clients.gateways[n] = new
        replace_process(fleet, old, new)
    for old in watchers:
        replace_process(fleet, old, fleet.watcher())


async def test_nothing_is_lost_and_nothing_fails(tmp_path: Path, broker: str) -> None:
    with running_fleet(
        tmp_path, broker, app="tests.support.agents.shutdown_agents", TEST_FOLDER=str(tmp_path)
    ) as fleet:
        clients = Clients(fleet)
        workers = [fleet.worker(pool=pool, concurrency=3) for pool in ("prefork", "threads")]
        watchers = [fleet.watcher(), fleet.watcher()]
        async with httpx.AsyncClient(timeout=LIMIT, headers=V1) as http, asyncio.TaskGroup() as group:
            for _ in range(8):
                group.create_task(clients.work(http))
            await asyncio.to_thread(restart_all, fleet, clients, workers, watchers)
            clients.stopping = True

        store = SyncStore(fleet.redis.store_url)
        keys = Keys("a2a")
        accepted_ids = {key.decode().split("{")[1].split("}")[0] for key in store.redis.scan_iter("a2a:{*}:task")}
        endings: Counter[str] = Counter()
        for task_id in accepted_ids:
            eventually(lambda t=task_id: ends_of(store, keys, t), what=f"{task_id} ends")
            endings.update(ends_of(store, keys, task_id))
        store.close()
        print(f"{broker}: {len(accepted_ids)} tasks, {clients.resumed} streams resumed, {dict(endings)}")
        assert set(clients.known) <= accepted_ids
        assert endings == {"COMPLETED": len(accepted_ids)}
        assert clients.resumed > 0


def ends_of(store: SyncStore, keys: Keys, task_id: str) -> list[str]:
    """Return the terminal states in a task's log."""
    events = [entry.event for entry in store.run(read_log(keys, task_id, 0, limit=1000)).entries]
    states = [event.status.state for event in events if isinstance(event, Task | TaskStatusUpdateEvent)]
    return [TaskState.Name(state).removeprefix("TASK_STATE_") for state in states if is_terminal(state)]
