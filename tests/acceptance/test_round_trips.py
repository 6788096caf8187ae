"""Exact number of round trips to Redis for a message, an event and a run.

MONITOR shows each command with its database, and marks the commands of scripts, which are not round trips.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages

import httpx
import pytest
import redis

import a2a_celery.store
from a2a_celery.features.publish_on_accept.section import PushedMessage
from a2a_celery.store.operation import script
from tests.support.clients.talk import HEADERS, TIMEOUT, read, send
from tests.support.processes.fleet import Fleet, Gateway, running_fleet

for module in walk_packages(a2a_celery.store.__path__, "a2a_celery.store."):
    import_module(module.name)  # the text of a script includes its signature

SCRIPTS = (
    "create_task", "mark_published", "claim_run", "append", "settle_run", "read_log", "read_task", "renew_runs",
    "read_memory", "report_prefetched",
)  # fmt: skip
LOADED = [*map(script, SCRIPTS), script("create_task", (PushedMessage,))]
NAMES = {loaded.sha: loaded.name for loaded in LOADED}

BY_THE_CLOCK = {
    "renew_runs", "mark_published", "read_memory", "report_prefetched",
    "PING", "SUBSCRIBE", "UNSUBSCRIBE", "HELLO", "CLIENT",
}  # fmt: skip
"""Commands whose number does not depend on the number of messages. Processes send them at intervals, when a task gets
its first subscriber, or when a process needs one more concurrent connection than before."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Fleet, Gateway]]:
    """Fleet with a worker and a gateway that have already executed a task. Redis has loaded all scripts."""
    with running_fleet(Path(tmp_path_factory.mktemp("fleet"))) as fleet:
        with redis.Redis.from_url(fleet.redis.store_url) as client:
            for loaded in LOADED:
                client.script_load(loaded.text)
        fleet.worker(pool="threads")
        gateway = fleet.gateway()
        send(gateway, "echo", "hello")
        yield fleet, gateway


def stream_lines(gateway: Gateway, agent: str, text: str) -> list[str]:
    """Send a streaming message and return the data lines of the stream."""
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    url = f"{gateway.url}/agents/{agent}/message:stream"
    answer = httpx.post(url, json={"message": message}, headers=HEADERS, timeout=TIMEOUT)
    return [line for line in answer.text.splitlines() if line.startswith("data:")]


def trips(fleet: Fleet, act: Callable[[], object], *, runs: int = 1) -> Counter[str]:
    """Call `act`, and wait until `runs` runs have ended. Return the number of commands that processes sent, by name of
    the command or script."""
    client = redis.Redis.from_url(fleet.redis.store_url)
    commands: Counter[str] = Counter()
    with client.monitor() as monitor:
        act()
        for entry in monitor.listen():
            words = entry["command"].split()
            if words[0] == "ECHO":
                break
            if entry["db"] != 0 or entry["client_type"] == "lua":
                continue
            name = NAMES.get(words[1], words[1]) if words[0] == "EVALSHA" else words[0]
            commands[name] += 1
            if name == "settle_run" and commands[name] == runs:
                client.echo("that is all")
    client.close()
    return Counter({name: times for name, times in commands.items() if name not in BY_THE_CLOCK})


def broker_commands(fleet: Fleet, act: Callable[[], object]) -> Counter[str]:
    """Call `act`. Return the number of commands that the broker's database received until shortly after that."""
    commands: Counter[str] = Counter()
    with redis.Redis.from_url(fleet.redis.store_url) as client, client.monitor() as monitor:
        act()
        client.echo("that is all")
        for entry in monitor.listen():
            name = entry["command"].split()[0]
            if name == "ECHO":
                return commands
            if entry["db"] == 1:
                commands[name] += 1
    raise AssertionError("the connection of the monitor was closed")


@pytest.mark.parametrize("messages", [1, 10])
def test_a_blocking_message_costs_its_gateway_one_and_its_worker_two(
    pair: tuple[Fleet, Gateway], messages: int
) -> None:
    fleet, gateway = pair

    commands = trips(fleet, lambda: [send(gateway, "echo", "hello") for _ in range(messages)], runs=messages)

    each = {"create_task": 1, "claim_run": 1, "settle_run": 1}
    assert commands == {name: messages * times for name, times in each.items()}


@pytest.mark.parametrize("ack_emulation", [True, False])
def test_commands_of_a_run_at_a_redis_broker(tmp_path: Path, ack_emulation: bool) -> None:
    runs = 10
    with running_fleet(tmp_path, A2A_ACK_EMULATION=str(ack_emulation)) as fleet:
        fleet.worker(pool="threads")
        gateway = fleet.gateway()
        send(gateway, "echo", "hello")

        commands = broker_commands(fleet, lambda: [send(gateway, "echo", "hello") for _ in range(runs)])

    assert commands["LPUSH"] == runs
    assert commands["HSET"] == (runs if ack_emulation else 0), "kombu records an unacknowledged message"
    assert bool(commands["HDEL"]) == ack_emulation, "kombu removes it"


def test_accepting_a_message_queues_its_run(pair: tuple[Fleet, Gateway]) -> None:
    fleet, _ = pair
    gateway = fleet.gateway()
    send(gateway, "echo", "hello")
    pushes: list[tuple[str, int]] = []
    with redis.Redis.from_url(fleet.redis.store_url) as client, client.monitor() as monitor:
        for _ in range(3):
            send(gateway, "echo", "hello")
        client.echo("that is all")
        for entry in monitor.listen():
            name, *arguments = entry["command"].split()
            if name == "ECHO":
                break
            if name == "LPUSH" and arguments[0] == fleet.queue:
                pushes.append((entry["client_type"], entry["db"]))

    assert pushes == [("lua", 1)] * 3, "create_task pushes the message of kombu"


def test_a_message_that_waits_for_nothing_costs_its_gateway_one(pair: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = pair

    commands = trips(fleet, lambda: send(gateway, "echo", "hello", returnImmediately=True))

    assert commands == {"create_task": 1, "claim_run": 1, "settle_run": 1}


def test_a_blocking_call_reads_no_intermediate_events(pair: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = pair

    commands = trips(fleet, lambda: send(gateway, "pace", "5 0.2"))
    asked_of_many = trips(fleet, lambda: send(gateway, "pace", "20 0.05"))

    assert commands == {"create_task": 1, "claim_run": 1, "append": 5, "settle_run": 1}
    assert asked_of_many.pop("append") <= 20
    assert asked_of_many == {"create_task": 1, "claim_run": 1, "settle_run": 1, "read_task": 1}, "the whole, once"


def test_an_event_of_a_stream_costs_a_write_and_no_read(pair: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = pair

    commands = trips(fleet, lambda: stream_lines(gateway, "pace", "5 0.2"))

    assert commands == {"create_task": 1, "claim_run": 1, "append": 5, "settle_run": 1}


def test_an_event_that_is_large_costs_a_read_too(pair: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = pair

    commands = trips(fleet, lambda: stream_lines(gateway, "echo", "x" * 20_000))

    assert commands == {"create_task": 1, "claim_run": 1, "settle_run": 1, "read_log": 1}


def test_events_that_come_close_together_share_their_writes_and_reads(pair: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = pair

    commands = trips(fleet, lambda: stream_lines(gateway, "count", "1000"))

    writes, reads = commands.pop("append"), commands.pop("read_log", 0)
    assert commands == {"create_task": 1, "claim_run": 1, "settle_run": 1}
    assert writes <= 1000 / 16
    notifications = writes + commands["settle_run"]
    assert reads <= notifications, "at most one for each notification, if its entries take more than 8 KiB"


def test_reading_a_task_costs_one(pair: tuple[Fleet, Gateway]) -> None:
    fleet, gateway = pair
    task = send(gateway, "echo", "hello")

    commands = trips(fleet, lambda: [read(gateway, "echo", task), send(gateway, "echo", "hello")])

    assert commands["read_task"] == 1
