"""Operator commands on a fleet with many problems. The commands report the problems and repair some of them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from socket import gethostname
from typing import Any

import psutil
import pytest
import redis

from tests.support import ROOT
from tests.support.clients.operator import Operator
from tests.support.clients.talk import read, send, state
from tests.support.processes.fleet import Fleet, Gateway, Process, running_fleet
from tests.support.processes.terminal import CTRL_C, terminal
from tests.support.waiting import eventually

NOWHERE = "127.0.0.1:1"


@dataclass
class Site:
    """Fleet with many problems.

    No watcher runs, no worker sends events, and Redis evicts keys. One worker has fewer agents, a different pool
    and a different lease TTL. One task was lost with its process, two tasks occupy their workers, and six tasks wait.
    """

    fleet: Fleet
    gateway: Gateway
    good: Process
    bad: Process
    a2a: Operator
    lost_task_id: str
    works: dict[str, str]
    """Ids of the tasks that occupy the "good" and the "bad" worker."""

    waits: list[str]

    def is_in(self, agent: str, task_id: str, expected_state: str) -> None:
        """Wait until the task is in the state `expected_state`."""
        task = {"id": task_id}
        eventually(lambda: state(read(self.gateway, agent, task)) == expected_state, what=f"{agent}: {expected_state}")

    def begin(self, agent: str, text: str) -> str:
        """Send a message, and wait until a worker runs the task. Return the task's id."""
        task_id = str(send(self.gateway, agent, text, returnImmediately=True)["id"])
        self.is_in(agent, task_id, "WORKING")
        return task_id


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        with redis.Redis.from_url(fleet.redis.store_url) as client:
            client.config_set("maxmemory", "200mb")
            client.config_set("maxmemory-policy", "allkeys-lru")
        gateway, good = fleet.gateway(), fleet.worker(concurrency=1)
        bad = fleet.worker(app="tests.support.agents.few_agents", pool="threads", concurrency=1, A2A_LEASE_TTL="20")
        operator = Operator(fleet)
        operator.a2a.agent("unread", queue="nobody-reads-this")(_unread)
        site = Site(fleet, gateway, good, bad, operator, "", {}, [])
        # while the bad worker has left the queue, only the good worker receives the run that is lost with its process
        operator.rows("drain", "--worker", site.fleet.node_name(bad))
        site.lost_task_id = site.begin("patient", "")
        for child in psutil.Process(good.pid).children():
            child.kill()
        site.is_in("patient", site.lost_task_id, "FAILED")
        site.works["good"] = site.begin("silent", "600")
        operator.rows("drain", "--worker", site.fleet.node_name(bad), "--undo")
        operator.rows("drain", "--worker", site.fleet.node_name(good), "--timeout", "0", code=1)
        site.works["bad"] = site.begin("silent", "600")
        operator.rows("drain", "--worker", site.fleet.node_name(good), "--undo")
        site.waits += [str(send(gateway, "echo", "a secret", returnImmediately=True)["id"]) for _ in range(6)]
        yield site
        for worker in (good, bad):
            worker.kill()  # a graceful shutdown would wait for the runs


async def _unread(turn: object) -> str:
    return ""


def test_doctor_reports_all_problems_and_their_remedies(site: Site) -> None:
    problems = site.a2a.rows("doctor", "--url", site.gateway.url, code=1)
    findings = {(row["check"], row["level"], row["about"]): row["text"] for row in problems}
    good, bad = site.fleet.node_name(site.good), site.fleet.node_name(site.bad)

    for subject, text in {
        (
            "store",
            "wrong",
            "store",
        ): "maxmemory-policy is allkeys-lru: Redis may evict tasks. Set noeviction",
        ("memory", "ok", "memory"): "of maxmemory (200 MiB) are used",
        ("broker", "ok", "broker"): "reached: Redis ",
        ("timeouts", "ok", "timeouts"): "visibility timeout (3600 s)",
        ("versions", "ok", "versions"): "celery 5.",
        ("agents", "wrong", "agent fail"): f"workers that consume its queue {site.fleet.queue} reject its runs: {bad}",
        ("agents", "wrong", "agent unread"): "no worker that reports consumes its queue nobody-reads-this",
        ("cancelling", "note", bad): "cannot enforce cancellation on the pool threads",
        ("events", "note", "events"): f"workers send no events to Flower: {good}, {bad}. Start them with -E",
        ("watchers", "wrong", "watchers"): "Start celery -A … a2a watcher",
        ("dead_letters", "note", "dead letters"): "1 FAILED because the worker was lost",
        ("same_settings", "wrong", bad): "A2A_LEASE_TTL is 20.0 there, and 15.0 here",
        ("clocks", "ok", "clock"): "of the store's",
        ("gateway", "ok", "gateway"): "is ready",
        ("cancelling", "ok", good): "enforces cancellation",
    }.items():
        assert text in findings[subject], subject
    assert "wrong, " in site.a2a("doctor", "--url", site.gateway.url, code=1).stdout.splitlines()[-1]


def test_top_shows_active_and_prefetched_runs_of_each_worker(site: Site) -> None:
    def prefetched_view() -> Any:
        [view] = site.a2a.rows("top", "--once")
        return view if sum(worker["prefetched"] for worker in view["workers"]) == len(site.waits) else None

    view = eventually(prefetched_view, what="the workers report the runs that they have prefetched")
    workers = {worker["worker"]: worker for worker in view["workers"]}
    assert sorted(workers) == sorted([site.fleet.node_name(site.good), site.fleet.node_name(site.bad)])
    assert {worker["active"] for worker in workers.values()} == {1}
    assert view["runs"]["running"] == 2
    assert view["agents"]["patient"]["ended"]["failed"] == 1
    for line in site.a2a("top", "--once").stdout.splitlines():
        assert "secret" not in line
    assert "needs a terminal" in site.a2a("top", code=2).stderr


@pytest.mark.parametrize("key", ["q", CTRL_C])
def test_top_on_a_terminal(site: Site, key: str) -> None:
    settings = {"A2A_STORE_URL": site.fleet.redis.store_url, "CELERY_BROKER_URL": site.fleet.broker_url}
    settings |= {"TEST_QUEUE": site.fleet.queue}
    program = f"import os; os.environ.update({settings!r}); from celery.__main__ import main; main()"
    with terminal(program, "-A", "tests.support.agents.basic", "a2a", "top") as screen:
        screen.shows(site.fleet.node_name(site.good))
        screen.shows("UTC", times=2)
        screen.types(key)

        assert screen.ends() == 0
        assert screen.screen.endswith("\x1b[?25h\x1b[?1049l")


def test_stats_counts_waiting_working_and_lost_tasks(site: Site) -> None:
    [stats] = site.a2a.rows("stats")

    assert stats["agents"]["echo"]["open"] == {"submitted": 6}
    assert stats["agents"]["echo"]["oldestWaitingSeconds"] > 0
    assert stats["agents"]["silent"]["open"] == {"working": 2}
    assert stats["agents"]["patient"]["ended"]["failed"] == 1
    assert stats["runs"] == {"queued": 6, "blocked": 0, "running": 2, "delegated": 0, "suspended": 0}
    assert stats["deadLetters"] == 1
    assert stats["store"]["tasks"] == 9
    assert 1000 < stats["store"]["bytesPerTask"] < stats["store"]["bytes"]
    lines = site.a2a("stats", "--agent", "echo").stdout.splitlines()
    assert lines[0].split()[:5] == ["AGENT", "WAITING", "OLDEST", "WORKING", "PAUSED"]
    assert re.match(r"echo +6 +\d+ .*s +0 +0 ", lines[1])
    assert lines[2] == ""


def test_stuck_and_lost_tasks_are_listed_by_owner(site: Site) -> None:
    stuck_tasks = site.a2a.rows("list", "--stuck", "--older-than", "0")
    assert {row["task"]: row["why"] for row in stuck_tasks} == dict.fromkeys(site.waits, "unclaimed")
    assert site.a2a.rows("list", "--stuck", "--older-than", "0", "--owner", "nobody") == []
    rows = site.a2a.rows("list", "--all", "--state", "working")
    nodes = {site.works["good"]: site.fleet.node_name(site.good), site.works["bad"]: site.fleet.node_name(site.bad)}
    assert {row["task"]: row["worker"] for row in rows} == nodes
    [dead_letter] = site.a2a.rows("requeue", "--agent", "patient", "--since", "1h")
    assert dead_letter["task"] == site.lost_task_id
    assert site.a2a.rows("requeue", "--owner", "nobody") == []
    table = site.a2a("list", "--all").stdout
    assert table.count("\n") == 10
    assert "a secret" not in table


def page_commands() -> list[str]:
    """Return the commands of docs/operating.md."""
    page = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def test_the_documented_commands_work(site: Site) -> None:
    """The test runs read-only commands as documented. It runs other commands with --dry-run, --undo or --help."""
    names: dict[str, Any] = {
        "TASK": site.lost_task_id,
        "celery@host-7": site.fleet.node_name(site.good),
        "host-7": gethostname(),
        "researcher": "echo",
        "gpu": site.fleet.queue,
        "http://127.0.0.1:8000": site.gateway.url,
    }
    executed_count = 0
    for line in page_commands():
        assert line.startswith("celery -A acme a2a ")
        words = [names.get(word, word) for word in shlex.split(line.removeprefix("celery -A acme a2a "))]
        if words[0] == "drain":
            words += ["--undo"] * ("--undo" not in words and "--shutdown" not in words)
            words = [word if word != "--shutdown" else "--undo" for word in words]
        if "--watch" in words:
            words = words[: words.index("--watch")]
        if words == ["top"]:
            words += ["--once"]
        if words[0] == "cancel":
            words += ["--help"] if "--store" in words else ["--dry-run"]
        if words[0] == "signal" or (words[0] == "requeue" and ("--all" in words or site.lost_task_id in words)):
            words += ["--help"]
        site.a2a(*words, code=int(words[0] == "doctor"))
        executed_count += 1
    assert executed_count > 10


def test_cancel_and_drain_have_the_reported_effects(site: Site) -> None:
    a2a, bad, good = site.a2a, site.fleet.node_name(site.bad), site.fleet.node_name(site.good)

    # messages that the bad worker has fetched run on other workers, and the run that it has begun continues
    [remaining_row] = a2a.rows("drain", "--worker", bad, "--timeout", "0", code=1)
    assert (remaining_row["state"], remaining_row["running"]) == ("busy", [f"{site.works['bad']}.1"])
    assert remaining_row["queues"] == [site.fleet.queue]
    assert "is drained and does not consume" in a2a("doctor", "--url", site.gateway.url, code=1).stdout
    context = next(row["contextId"] for row in a2a.rows("list", "--all") if row["task"] == site.works["good"])
    [cancel_row] = a2a.rows("cancel", "--all", "--yes", "--context", context)
    assert (cancel_row["task"], cancel_row["outcome"]) == (site.works["good"], "canceled")
    for task_id in site.waits:
        site.is_in("echo", task_id, "COMPLETED")
    assert remaining_row["returned"] > 0
    site.is_in("silent", site.works["bad"], "WORKING")

    # when that run is cancelled, the worker can be stopped
    output = a2a("cancel", "--all", "--yes", "--agent", "silent").stdout
    assert output == "1 task: 1 canceled, 0 had ended, 0 still running\n"
    [drain_row] = a2a.rows("drain", "--worker", bad, "--shutdown")
    assert drain_row["state"] == "shut_down"
    eventually(lambda: not site.bad.is_running, what="the worker ends")

    # a queue that other agents use too, and that no other worker consumes
    output = a2a("drain", "--agent", "echo").stdout
    assert re.search(rf"the queue {site.fleet.queue} also serves .*patient.*, and other Celery tasks", output)
    assert f"no other worker that reports consumes {site.fleet.queue}" in output
    assert f"{good}: does not consume {site.fleet.queue}, and has no work left" in output
    waits = str(send(site.gateway, "echo", "x", returnImmediately=True)["id"])
    assert a2a.rows("list", "--all", "--agent", "echo", "--state", "submitted")[0]["task"] == waits
    assert a2a("drain", "--all", "--undo").stdout == f"{good}: consumes {site.fleet.queue} again\n"
    site.is_in("echo", waits, "COMPLETED")

    # lost tasks run again
    [requeue_row] = a2a.rows("requeue", "--all", "--agent", "patient")
    assert requeue_row["requeuedFrom"] == site.lost_task_id
    site.is_in("patient", requeue_row["task"], "WORKING")


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("drain",), "choose workers with --worker, --host, --queue, --agent or --all"),
        (("drain", "--all", "--queue", "q"), "--all selects all workers"),
        (("drain", "--all", "--shutdown", "--undo"), "--shutdown ends workers"),
        (("drain", "--queue", "q", "--shutdown"), "--shutdown ends workers"),
        (("stats", "--watch", "0"), "--watch"),
    ],
)
def test_wrong_usage_is_an_error_with_a_hint(site: Site, arguments: tuple[str, ...], error: str) -> None:
    assert error in site.a2a(*arguments, code=2).stderr


def test_unknown_workers_and_agents_are_reported(site: Site) -> None:
    assert "nobody@x does not reply" in site.a2a("drain", "--worker", "nobody@x", code=1).stderr
    assert "no worker that consumes nothing replies" in site.a2a("drain", "--queue", "nothing", code=1).stderr
    assert "no agent 'nobody'" in site.a2a("drain", "--agent", "nobody", code=1).stderr
    storeless_operator = Operator(site.fleet, a2a_store_url=f"redis://{NOWHERE}/0")
    for command in (("stats",), ("list", "--all"), ("cancel", "--all"), ("requeue",)):
        assert "A2A_STORE_URL" in storeless_operator(*command, code=1).stderr
    brokerless_operator = Operator(site.fleet, broker_url=f"amqp://{NOWHERE}")
    assert "See CELERY_BROKER_URL" in brokerless_operator("drain", "--all", code=1).stderr
