"""`turn.call` with real processes. All attempts share one child, and the child is cancelled with its parent."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from a2a_celery.features.families.family import read_family
from a2a_celery.lifecycle.states import CANCELED, COMPLETED, WORKING
from a2a_celery.store import Keys, SyncStore
from tests.acceptance.test_families import KEYS, Families, families  # noqa: F401
from tests.support.clients.talk import cancel, read, send, state
from tests.support.processes.fleet import ASYNCIO_POOL, running_fleet
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def worker(families: Families) -> None:  # noqa: F811
    families.fleet.worker(pool="threads", concurrency=40)


def text_of(task: dict[str, Any]) -> str:
    """Return the text of a completed task's artifacts."""
    assert state(task) == "COMPLETED", task
    return "".join(part["text"] for artifact in task["artifacts"] for part in artifact["parts"])


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("agent", ["calls", "calls-url"])
def test_a_call_returns_the_result_of_a_child(families: Families, agent: str) -> None:  # noqa: F811
    task = send(families.gateway, agent, "hello")

    assert text_of(task) == "|hello"
    [child] = families.children(task["id"], 1)
    assert families.family(child).task.agent == "child"


@pytest.mark.usefixtures("worker")
def test_a_plain_function_calls_one_after_the_other(families: Families) -> None:  # noqa: F811
    task = send(families.gateway, "calls-blocking", "hello")

    assert text_of(task) == "|after |hello"
    assert len(families.children(task["id"], 2)) == 2


@pytest.mark.usefixtures("worker")
def test_two_children_work_at_once(families: Families, tmp_path: Path) -> None:  # noqa: F811
    first, second = tmp_path / "first", tmp_path / "second"
    task = families.begin(f"wait {first}\nwait {second}", "calls")
    children = families.children(task["id"], 2)
    for child in children:
        families.reaches(child, WORKING)
    second.touch()
    first.touch()

    families.reaches(task["id"], COMPLETED)
    assert text_of(read(families.gateway, "calls", task)) == "waited waited"
    assert families.children(task["id"], 2) == children


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize(
    ("text", "error", "end"), [("fail", "ChildFailed", "FAILED"), ("ask", "ChildInterrupted", "INPUT_REQUIRED")]
)
def test_a_child_that_does_not_complete_is_an_exception(families: Families, text: str, error: str, end: str) -> None:  # noqa: F811
    task = send(families.gateway, "calls", text)

    [child] = families.children(task["id"], 1)
    output_text = text_of(task)
    assert output_text.startswith(f"{error}: child task {child} of agent child is {end}")
    assert output_text.endswith(f"| {end} | {child}")
    assert "secret" not in output_text


@pytest.mark.usefixtures("worker")
def test_an_agent_that_calls_itself_reaches_the_maximum_depth(families: Families) -> None:  # noqa: F811
    assert "The parent task has 16 ancestors" in text_of(send(families.gateway, "calls-itself", "down"))


@pytest.mark.usefixtures("worker")
def test_a_retry_receives_the_recorded_result(families: Families) -> None:  # noqa: F811
    task = send(families.gateway, "retries", "hello")

    assert text_of(task) == "|hello"
    assert len(families.family(task["id"]).children) == 1


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("agent", ["calls", "calls-url"])
def test_a_requeued_parent_may_use_its_child_again(families: Families, agent: str) -> None:  # noqa: F811
    task = families.begin("hello", agent)
    [child] = families.children(task["id"], 1)

    assert families.store.redis.hget(KEYS.task(child).record, "called") == b"1"


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("agent", ["calls", "calls-url"])
def test_a_cancel_of_the_parent_cancels_the_child(families: Families, agent: str) -> None:  # noqa: F811
    task = families.begin("forever", agent)
    [child] = families.children(task["id"], 1)
    families.reaches(child, WORKING)

    cancel(families.gateway, agent, task)

    families.reaches(task["id"], CANCELED)
    families.reaches(child, CANCELED)


@pytest.mark.usefixtures("worker")
def test_a_message_that_interrupts_the_parent_cancels_the_child(families: Families) -> None:  # noqa: F811
    task = families.begin("forever", "interruptible-calls")
    [child] = families.children(task["id"], 1)
    families.reaches(child, WORKING)

    send(families.gateway, "interruptible-calls", "hello", task_id=task["id"])

    families.reaches(child, CANCELED)
    families.reaches(task["id"], COMPLETED)
    _, next_child = families.children(task["id"], 2)
    families.reaches(next_child, COMPLETED)


@pytest.mark.usefixtures("worker")
def test_the_next_attempt_waits_for_the_same_child(families: Families, tmp_path: Path) -> None:  # noqa: F811
    """The worker of the parent is killed while the child is running on another worker."""
    fleet, go_on = families.fleet, tmp_path / "go-on"
    queue = f"{fleet.queue}-mortal"
    fleet.queues.append(queue)
    options = ("-Q", queue, "-P", "prefork", "-c", "1", "--without-mingle", "-l", "INFO")
    mortal = fleet.start("mortal-caller", "worker", "-n", f"1-{queue}@%h", *options)
    mortal.wait_for_output(" ready.")
    task = families.begin(f"wait {go_on}", "mortal-calls")
    [child] = families.children(task["id"], 1)
    families.reaches(child, WORKING)

    mortal.signal_group(signal.SIGKILL)
    successor = fleet.start("successor", "worker", "-n", f"2-{queue}@%h", *options)
    successor.wait_for_output(" ready.")
    eventually(
        lambda: "attempt" in str(read(families.gateway, "mortal-calls", task).get("metadata")), what="the next attempt"
    )
    assert families.family(child).task.state == WORKING
    go_on.touch()

    families.reaches(task["id"], COMPLETED)
    assert text_of(read(families.gateway, "mortal-calls", task)) == "waited"
    assert [item.task_id for item in families.family(task["id"]).children] == [child]


@pytest.mark.parametrize("pool", ["prefork", "threads", "asyncio"])
def test_a_parent_holds_no_slot_while_its_child_works(families: Families, pool: str) -> None:  # noqa: F811
    """One worker with one slot executes a parent and its child."""
    fleet = families.fleet
    queue = f"{fleet.queue}-single"
    fleet.queues.append(queue)
    env = {"CELERY_CUSTOM_WORKER_POOL": ASYNCIO_POOL} if pool == "asyncio" else {}
    pool = "custom" if pool == "asyncio" else pool
    options = ("-Q", queue, "-P", pool, "-c", "1", "--without-mingle", "-l", "INFO")
    single = fleet.start(f"single-{pool}", "worker", "-n", f"{pool}-{queue}@%h", *options, **env)
    single.wait_for_output(" ready.")

    task = families.begin("one\ntwo", "single-calls")

    families.reaches(task["id"], COMPLETED)
    assert text_of(read(families.gateway, "single-calls", task)) == "|one |two"
    assert len(families.family(task["id"]).children) == 2
    single.stop()


@pytest.mark.usefixtures("worker")
def test_a_suspended_parent_is_cancelled_with_its_child(families: Families) -> None:  # noqa: F811
    task = families.begin("forever", "calls")
    [child] = families.children(task["id"], 1)
    eventually(lambda: "waitsFor" in str(read(families.gateway, "calls", task).get("metadata")), what="it is suspended")

    cancel(families.gateway, "calls", task)

    families.reaches(task["id"], CANCELED)
    families.reaches(child, CANCELED)


@pytest.mark.parametrize("agent", ["calls", "calls-remote"])
def test_a_worker_that_dies_before_it_records_its_child_starts_no_other_one(tmp_path: Path, agent: str) -> None:
    env = {"A2A_LEASE_TTL": "2", "TEST_FOLDER": str(tmp_path)}
    with running_fleet(tmp_path, app="tests.support.agents.killed_calls", **env) as fleet:
        gateway = fleet.gateway()
        fleet.set_variable("TEST_GATEWAY", gateway.url)
        fleet.watcher()
        store = SyncStore(fleet.redis.store_url)
        fleet.worker(concurrency=4)

        task = send(gateway, agent, "hello")

        assert (tmp_path / "killed").exists()
        assert text_of(task) == "|hello"
        assert task["metadata"]["a2a_celery/attempt"] == 2
        family = store.run(read_family(Keys("a2a"), None, task["id"]))
        assert family is not None
        assert len(family.children) == 1
        store.close()
