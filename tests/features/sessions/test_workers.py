"""Sessions on real workers. A session persists across tasks, workers and kills. Unreadable sessions are reported."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from a2a_celery.lifecycle.execution import ExecutionState
from a2a_celery.store import Keys, SyncStore
from a2a_celery.store.runs.release import read_activities
from tests.support.clients.contexts import Fold, output_of
from tests.support.clients.talk import state
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import eventually

APP = "tests.support.agents.session_agents"
LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
KEY = "k" * 32


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fold]:
    folder = tmp_path_factory.mktemp("sessions")
    with running_fleet(folder, app=APP, TEST_NOTES=str(folder), A2A_SECRET_KEY=KEY) as fleet:
        site = Fold(fleet, folder)
        fleet.worker(concurrency=4)
        yield site


def test_the_next_task_gets_the_session(site: Fold) -> None:
    context = site.context("remember")

    first_output, second_output = output_of(context.send("one")), output_of(context.send("two"))

    assert (first_output["heard"], first_output["version"], first_output["history"]) == (["one"], 0, ["one"])
    assert (second_output["heard"], second_output["version"]) == (["one", "two"], 1)
    assert second_output["history"] == ["one", "two"], "its answers are data"
    assert output_of(site.context("remember").send("three"))["heard"] == ["three"]


def test_the_answer_to_a_question_gets_the_session(site: Fold) -> None:
    context = site.context("remember")
    task = context.send("ask")
    assert state(task) == "INPUT_REQUIRED"

    task = context.send("blue", task)

    assert output_of(task)["heard"] == ["ask", "ask", "blue"], "the function is called again for the answer"


@pytest.mark.parametrize("text", ["fail", "large 1048576", "odd", "nonsense"])
def test_a_failure_leaves_the_last_checkpoint(site: Fold, text: str) -> None:
    context = site.context("remember")
    context.send("one")

    task = context.send(text)

    assert state(task) == "FAILED"
    [part] = task["status"]["message"]["parts"]
    reference = part["text"].rpartition(" ")[2].strip(".)]")
    worker = site.fleet.processes[-1]
    worker.wait_for_output(reference)
    expected_words = ["one", "fail"] if text == "fail" else ["one"]
    assert output_of(context.send("two"))["heard"] == [*expected_words, "two"]


def test_plain_functions_executors_and_plain_tasks_have_one_too(site: Fold) -> None:
    plain, executor, task = (site.context(name) for name in ("sync-remember", "counting", "count-in-session"))

    assert [output_of(plain.send("x")) for _ in range(2)] == ["1 of 1", "2 of 3"]
    assert [output_of(executor.send("x")) for _ in range(2)] == ["1", "2"]
    assert [output_of(task.send("x")) for _ in range(2)] == [1, 2]


def test_an_executor_has_ended_before_the_next_of_its_context_begins(site: Fold) -> None:
    context = site.context("counting")

    tasks = [context.send("x", wait=False) for _ in range(3)]

    assert sorted(output_of(context.wait_for_end(task)) for task in tasks) == ["1", "2", "3"]
    assert [line.split()[0] for line in context.notes] == ["said", "over"] * 3


def test_an_agent_without_a_session_gets_an_error_with_the_option(site: Fold) -> None:
    assert state(site.context("no-session").send("x")) == "FAILED"

    assert "give it the option session=True" in site.fleet.processes[-1].output()


def test_one_of_two_concurrent_runs_gets_a_conflict(site: Fold) -> None:
    context = site.context("at-once")
    hold = site.folder / "hold"
    hold.touch()
    tasks = [context.send(text, wait=False) for text in ("one", "other")]
    for task in tasks:
        context.wait_for_end(task, "WORKING")
    hold.unlink()

    ends = [context.wait_for_end(task) for task in tasks]

    assert sorted(map(state, ends)) == ["COMPLETED", "FAILED"]
    [loser] = [end for end in ends if state(end) == "FAILED"]
    assert output_of(loser) == "conflict"
    # the history contains the texts that the client received, not the agent's state
    history = SyncStore(site.fleet.redis.store_url).run(read_activities(Keys(), loser["id"]))
    assert history is not None
    assert history.activities[-1].transition.after is ExecutionState.ERROR


def test_what_a_killed_worker_had_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    with running_fleet(tmp_path, app=APP, TEST_NOTES=str(tmp_path), A2A_SECRET_KEY=KEY, **LEASE) as fleet:
        site, worker = Fold(fleet, tmp_path), fleet.worker()
        fleet.watcher()
        asking_context, context = site.context("remember"), site.context("five-steps")
        asking_context.send("one")
        question = asking_context.send("ask")
        task = context.send("go", wait=False)
        eventually(
            lambda: "TOOL_EXECUTION 3 in attempt 1" in context.notes, what="it is in the midst of the third step"
        )
        worker.kill()
        fleet.worker()

        assert output_of(asking_context.send("blue", question))["heard"] == ["one", "ask", "ask", "blue"]
        task = context.wait_for_end(task)

    assert state(task) == "COMPLETED"
    assert context.notes == [
        *(f"TOOL_EXECUTION {step} in attempt 1" for step in (1, 2, 3)),
        *(f"TOOL_EXECUTION {step} in attempt 2" for step in (3, 4, 5)),
    ]
    texts = [artifact["parts"][0]["text"] for artifact in task["artifacts"]]
    assert texts == [*(f"step {step}" for step in range(1, 6)), "[1, 2, 3, 4, 5] in attempt 2"]


def test_no_worker_opens_a_session_without_its_key(tmp_path: Path) -> None:
    with running_fleet(tmp_path, app=APP, TEST_NOTES=str(tmp_path), A2A_SECRET_KEY=KEY) as fleet:
        context, worker = Fold(fleet, tmp_path).context("remember"), fleet.worker(pool="solo")
        context.send("one")
        worker.stop()

        result = fleet.command("worker", "-P", "solo", A2A_SECRET_KEY="")
        assert result.returncode == 1
        last = result.stderr.splitlines()[-1]
        assert last.startswith("Error: a2a_secret_key is not set, but webhooks or sessions"), result.stderr

        store = SyncStore(fleet.redis.store_url)
        store.redis.delete(Keys().secrets)  # like an operator who has lost the key
        store.close()
        worker = fleet.worker(pool="solo", A2A_SECRET_KEY="")
        assert state(context.send("two")) == "FAILED"
        assert f"the session of context '{context.id}' cannot be opened: a2a_secret_key is not set" in worker.output()
