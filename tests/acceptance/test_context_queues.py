"""Serialized runs of a context on several workers, some of which are killed, on both brokers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.clients.contexts import Context, Fold, state
from tests.support.clients.talk import cancel
from tests.support.processes.fleet import running_fleet
from tests.support.waiting import eventually

pytestmark = pytest.mark.each_kind

APP = "tests.support.agents.session_agents"
LEASE = {"A2A_LEASE_TTL": "2", "A2A_REDISPATCH_AFTER": "3"}
CONTEXTS, TASKS = 5, 10


def first_begins(context: Context) -> list[str]:
    """Return the messages in the order in which their first runs began. Fail if two runs were active at the same
    time."""
    order: list[str] = []
    active_run: tuple[str, int] | None = None
    for line in context.notes:
        kind, task_id, attempt, text = line.split()
        if kind == "begin":
            if text not in order:
                order.append(text)
            lost_before = active_run is not None and active_run == (task_id, int(attempt) - 1)
            assert active_run is None or lost_before, f"{line} while {active_run} was at work"
            active_run = task_id, int(attempt)
        else:
            assert active_run == (task_id, int(attempt)), line
            active_run = None
    assert active_run is None
    return order


def test_no_two_runs_of_a_context_overlap_whatever_is_killed(tmp_path: Path, broker: str) -> None:
    with running_fleet(tmp_path, broker, app=APP, TEST_NOTES=str(tmp_path), **LEASE) as fleet:
        site, workers = Fold(fleet, tmp_path), [fleet.worker(concurrency=4), fleet.worker(pool="threads")]
        fleet.watcher()
        contexts = [site.context("in-turn") for _ in range(CONTEXTS)]
        hold = tmp_path / "hold"
        hold.touch()
        tasks = [(context, context.send(f"{n}", wait=False)) for n in range(TASKS) for context in contexts]
        eventually(lambda: all(context.notes for context in contexts), what="each context has a run under way")
        assert [len(context.notes) for context in contexts] == [1] * CONTEXTS, "and one only"

        workers[0].kill()
        hold.unlink()
        eventually(lambda: any(len(context.notes) > TASKS for context in contexts), what="half is done")
        workers[1].kill()
        fleet.worker(concurrency=4)
        ends = [context.wait_for_end(task) for context, task in tasks]

    assert [state(end) for end in ends] == ["COMPLETED"] * len(tasks)
    for context in contexts:
        assert first_begins(context) == [f"{n}" for n in range(TASKS)]


def test_one_that_waits_is_shown_and_can_be_cancelled(tmp_path: Path) -> None:
    with running_fleet(tmp_path, app=APP, TEST_NOTES=str(tmp_path)) as fleet:
        site, context_hold = Fold(fleet, tmp_path), tmp_path / "hold"
        fleet.worker(pool="threads")
        context_hold.touch()
        context = site.context("in-turn")
        first, second, third = (context.send(text, wait=False) for text in ("1", "2", "3"))
        context.wait_for_end(first, "WORKING")
        output = fleet.command("a2a", "list", "--stuck", "--older-than", "0.01").stdout

        assert cancel(site.gateway, "in-turn", second)["status"]["state"] == "TASK_STATE_CANCELED"
        context_hold.unlink()

        assert state(context.wait_for_end(third)) == "COMPLETED", "published by who ended the first: no watcher runs"
    assert output.count("another run of its context comes first") == 3, "two of them, and what to do about it"
    assert [line.split()[-1] for line in context.notes] == ["1", "1", "3", "3"]
