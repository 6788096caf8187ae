"""`a2a.call` with killed gateways and workers, under load, and with webhooks instead of polls."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from celery import chain, group

from a2a_celery.client.calling.progress import JITTER, WEBHOOK_POLL_INTERVAL_MIN
from tests.support.processes.caller_fleet import running_callers, text_of
from tests.support.processes.fleet import free_port
from tests.support.receivers.posts import DELIVERING
from tests.support.waiting import LIMIT, eventually
from tests.tiers import at_night


def test_a_chain_goes_on_when_the_gateway_in_its_middle_was_killed(tmp_path: Path) -> None:
    with running_callers(tmp_path, "redis") as site:
        middle, last = site.fleet.gateway(), site.fleet.gateway()
        worker = site.worker()
        steps = chain(
            site.call.s("echo", "12 0.8"),
            site.call.s(site.url("pace", middle)),
            site.call.s(site.url("echo", last), "It counts:"),
        )

        end = steps()
        eventually(lambda: site.states("pace") == ["WORKING"], what="the agent in the middle works")
        site.waits(end.parent)
        middle.kill()
        eventually(lambda: "COMPLETED" in site.states("pace"), what="its work is done meanwhile")
        count_before = worker.output().count(f"a2a.call[{end.parent.id}] retry")
        eventually(
            lambda: worker.output().count(f"a2a.call[{end.parent.id}] retry") > count_before,
            what="the step finds no gateway",
        )
        site.fleet.restart_gateway(middle)

        assert text_of(end) == "It counts:\n" + "".join(f"{n} " for n in range(12))
        assert len(site.tasks("pace")) == 1, "nothing was sent twice"


def test_a_step_waits_for_an_agent_that_is_not_up_yet(tmp_path: Path) -> None:
    with running_callers(tmp_path, "redis", agents=False) as site:
        site.worker()
        stopped_gateway = site.fleet.gateway()
        stopped_gateway.kill()
        failing_call = site.call.delay(site.url("once", stopped_gateway), "one 0", unreachable_for=0.1)
        step = site.call.delay(site.url("once", stopped_gateway), "two 0")
        site.waits(step)
        eventually(lambda: failing_call.state == "FAILURE", what="one step does not wait for so long")

        site.fleet.restart_gateway(stopped_gateway)
        site.fleet.worker(pool="threads")

        assert text_of(step).startswith("two")
        assert "is unreachable" in str(failing_call.result)


@pytest.mark.parametrize("count", at_night([50, 200], merge=[50]))
def test_many_calls_hold_no_worker(broker: str, tmp_path: Path, count: int) -> None:
    with running_callers(tmp_path, broker, agents=False) as site:
        site.worker(pool="solo" if broker == "redis" else "prefork")  # solo on RabbitMQ is slow with any task
        steps = group(site.call.s("echo", str(n)) for n in range(count)).apply_async()
        eventually(lambda: all(step.state == "RETRY" for step in steps.results), what="all are under way")

        answers = [site.step("add", n, n).delay().get(timeout=LIMIT) for n in range(10)]
        assert answers == [2 * n for n in range(10)]
        assert not any(step.ready() for step in steps.results)

        site.fleet.worker(pool="threads", concurrency=16)
        texts = [answer["text"] for answer in steps.get(timeout=LIMIT)]
        assert texts == [str(n) for n in range(count)]


@pytest.mark.each_kind
def test_a_killed_worker_s_calls_go_on_in_another(broker: str, tmp_path: Path) -> None:
    with running_callers(tmp_path, broker, TEST_VISIBILITY="5") as site:
        first = site.worker()
        waiting_tasks = [site.call.delay(site.url("once"), f"number{n} 8") for n in range(3)]
        for step in waiting_tasks:
            site.waits(step)
        # between BRPOP and the list of unacknowledged messages, a message is only in the worker's memory: see the docs
        eventually(
            lambda: all(first.output().count(f"a2a.call[{step.id}] received") >= 2 for step in waiting_tasks),
            what="the worker has prefetched the retries",
        )

        first.kill()
        site.worker()

        assert [text_of(step).split(",")[0] for step in waiting_tasks] == ["number0", "number1", "number2"]
        assert site.states("once") == ["COMPLETED"] * 3


def test_a_child_killed_while_it_sends_sends_the_same_again(tmp_path: Path) -> None:
    with running_callers(tmp_path, "redis") as site:
        worker = site.worker(TEST_DIES_ONCE=str(tmp_path / "died"))

        step = site.call.delay(site.url("once"), "one 0")

        assert text_of(step).startswith("one")
        assert (tmp_path / "died").exists()
        assert len(site.tasks("once")) == 1, "the agent knows its message again"
        assert worker.is_running


@pytest.mark.each_kind
def test_webhooks_end_the_wait(broker: str, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/a2a"
    with running_callers(tmp_path, broker, **DELIVERING) as site:
        site.fleet.watcher()
        site.receiver(url)
        worker = site.worker(TEST_WEBHOOK=url)

        slow, quick = (
            chain(site.call.s(site.url("silent"), "2"), site.call.s("echo"))(),
            site.call.delay("echo", "soon"),
        )

        sooner = (1 - JITTER) * WEBHOOK_POLL_INTERVAL_MIN - 5  # less than the minimum wait before a poll
        assert [end.get(timeout=sooner)["text"] for end in (slow, quick)] == ["done", "soon"]
        for step in (slow.parent, slow, quick):
            assert worker.output().count(f"a2a.call[{step.id}] retry") == 1, "it looked when it was told, and only then"


@pytest.mark.each_kind
def test_webhooks_and_revokes_reach_a_step_whose_retry_was_prefetched(broker: str, tmp_path: Path) -> None:
    """A worker with free slots prefetches the retry before the execution that published the retry has finished."""
    url = f"http://127.0.0.1:{free_port()}/a2a"
    with running_callers(tmp_path, broker, **DELIVERING) as site:
        site.fleet.watcher()
        site.receiver(url)
        worker = site.worker(concurrency=2, TEST_WEBHOOK=url, TEST_PREFETCH="4", TEST_NO_LOOKS="1")
        slow = [site.call.delay(site.url("silent"), "4") for _ in range(3)]
        revoked_calls = [site.call.delay(site.url("patient"), "work") for _ in range(3)]
        for step in (*slow, *revoked_calls):
            site.waits(step)
            worker.wait_for_output(f"a2a.call[{step.id}] retry")

        for step in revoked_calls:
            step.revoke()

        eventually(lambda: [step.state for step in revoked_calls] == ["REVOKED"] * 3, what="the steps are revoked")
        eventually(lambda: site.states("patient") == ["CANCELED"] * 3, what="their tasks are canceled")
        assert [text_of(step) for step in slow] == ["done"] * 3


def test_a_forged_post_has_no_effect(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}/a2a"
    with running_callers(tmp_path, "redis", agents=False) as site:
        site.receiver(url)

        headers = {"X-A2A-Notification-Token": "guess"}
        forged_response = httpx.post(f"{url}/some-step", json={"task": {"id": "t"}}, headers=headers, timeout=LIMIT)

        assert forged_response.status_code == 401
        assert "x-a2a-notification-token is not the expected one" in forged_response.json()["detail"]
