"""`a2a.call` on real workers and both brokers. A step that waits for a remote agent does not block its worker."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from celery import chain, chord, group

from a2a_celery.client.calling import CallFailed, CallInterrupted, CallRejected, CallTimedOut
from a2a_celery.client.result import Result
from tests.acceptance.test_callers import fields_of
from tests.support.agents.callers import BEARER
from tests.support.clients.bindings import rest
from tests.support.processes.caller_fleet import Callers, running_callers, text_of
from tests.support.processes.fleet import Process
from tests.support.receivers.celery_events import celery_events
from tests.support.waiting import LIMIT, eventually


@pytest.fixture(scope="module")
def site(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callers]:
    with running_callers(tmp_path_factory.mktemp("calling"), broker) as site:
        yield site


@pytest.fixture(scope="module")
def worker(site: Callers) -> Process:
    """Worker with one slot that prefetches one message."""
    return site.worker()


@pytest.mark.usefixtures("worker")
def test_a_chain_passes_the_texts_of_agents_on(site: Callers) -> None:
    steps = chain(site.call.s("echo", "all is well"), site.call.s(site.url("echo"), "They say:"), site.call.s("echo"))

    assert text_of(steps()) == "They say:\nall is well"


@pytest.mark.usefixtures("worker")
def test_a_chord_waits_for_all_of_its_agents(site: Callers) -> None:
    texts = [f"number {n}" for n in range(3)]

    text_results = chord([site.call.s("echo", text) for text in texts], site.step("texts"))()
    comparison = chord([site.call.s("echo", text) for text in texts], site.call.s("echo", "Compare:"))()

    assert text_results.get(timeout=LIMIT) == texts
    assert text_of(comparison) == "\n".join(["Compare:", *texts])


@pytest.mark.usefixtures("worker")
def test_a_group_has_each_ones_answer(site: Callers) -> None:
    answers = group(site.call.s("echo", str(n)) for n in range(3))().get(timeout=LIMIT)

    assert [Result.from_dict(answer).text for answer in answers] == ["0", "1", "2"]
    assert all(answer["stop_reason"] == "end_turn" and "history" not in answer["task"] for answer in answers)


@pytest.mark.usefixtures("worker")
def test_a_task_that_failed_stops_its_chain_and_fires_link_error(site: Callers) -> None:
    steps = chain(site.call.s(site.url("fail"), "go"), site.call.s(site.url("count"), "3"))

    last = steps.apply_async(link_error=site.step("note"))
    first = last.parent

    with pytest.raises(CallFailed, match=r"the task failed: The agent failed\.") as exc_info:
        first.get(timeout=LIMIT)
    assert exc_info.value.result.state_name == "FAILED"
    errback_text = eventually(lambda: site.app.backend.get(f"noted-{first.id}"), what="the errback ran")
    assert errback_text.decode().startswith("CallFailed: ")
    assert site.tasks("count") == []


@pytest.mark.usefixtures("worker")
def test_each_end_without_an_answer_has_its_own_error(site: Callers) -> None:
    rejected_call = site.call.delay(site.url("refuse"), "please")
    late_call = site.call.delay(site.url("silent"), "59", timeout=1)

    with pytest.raises(CallRejected, match=r"the agent rejected the task: Not today\."):
        rejected_call.get(timeout=LIMIT)
    with pytest.raises(CallTimedOut, match="not done within 1 s"):
        late_call.get(timeout=LIMIT)
    eventually(lambda: site.states("silent") == ["CANCELED"], what="the late task is cancelled")


@pytest.mark.usefixtures("worker")
def test_a_question_is_an_error_unless_it_is_asked_for(site: Callers) -> None:
    with pytest.raises(CallInterrupted, match=r"the agent asks: How many\?") as exc_info:
        site.call.delay(site.url("ask"), "some").get(timeout=LIMIT)
    question_result = site.call.delay(site.url("ask"), "some", on_interrupt="return").get(timeout=LIMIT)

    assert question_result["stop_reason"] == "interrupt"
    for task_id in (exc_info.value.result.task_id, question_result["task_id"]):
        assert text_of(site.call.delay(site.url("ask"), "7", task_id=task_id)) == "7 it is"


@pytest.mark.usefixtures("worker")
def test_a_revoked_step_cancels_its_task(site: Callers) -> None:
    count_before = len(site.tasks("patient"))
    step = site.call.delay(site.url("patient"), "work")
    site.waits(step)

    step.revoke()

    eventually(lambda: step.state == "REVOKED", what="the step is revoked")
    eventually(lambda: "CANCELED" in site.states("patient"), what="its task is canceled")
    assert len(site.tasks("patient")) == count_before + 1


@pytest.mark.usefixtures("worker")
def test_a_step_has_its_task_in_its_tenant(site: Callers) -> None:
    answer = site.call.delay(site.url("data"), "go", tenant="acme").get(timeout=LIMIT)
    assert fields_of(answer)["tenant"] == "acme"

    step = site.call.delay(site.url("patient"), "work", tenant="acme")
    site.waits(step)
    step.revoke()

    def states() -> list[str]:
        tasks = rest(site.gateway, "GET", "/acme/tasks", agent="patient").json()["tasks"]
        return [task["status"]["state"] for task in tasks]

    eventually(lambda: states() == ["TASK_STATE_CANCELED"], what="its task is canceled")


@pytest.mark.usefixtures("worker")
def test_a_copy_of_a_step_that_has_ended_is_dropped(site: Callers, worker: Process) -> None:
    step, name = site.call.s(site.url("once"), "one 0"), str(uuid4())
    first = step.apply_async(task_id=name).get(timeout=LIMIT)

    step.apply_async(task_id=name)
    worker.wait_for_output(f"a2a.call[{name}] has already ended: SUCCESS")

    assert site.app.AsyncResult(name).get(timeout=LIMIT) == first
    assert [task["id"] for task in site.tasks("once")] == [first["task_id"]]


@pytest.mark.usefixtures("worker")
def test_credentials_are_in_no_message_no_event_and_no_log(site: Callers, worker: Process) -> None:
    with celery_events(site.fleet.broker_url) as events:
        step = site.call.delay("echo", "hush")
        assert text_of(step) == "hush"
        eventually(lambda: "succeeded" in events.of[step.id], what="Celery says so")

    assert "hush" in repr(events.whole), "what is sent is to be seen, who sends it is not"
    assert BEARER not in repr(events.whole)
    assert BEARER not in worker.output()
    assert BEARER not in repr(site.app.backend.get(f"celery-task-meta-{step.id}"))
