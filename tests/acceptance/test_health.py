"""Health checks of a gateway whose dependencies are unavailable, and its recovery."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from a2a_celery.gateway.health import RESULT_FRESH_FOR
from tests.support.clients.bindings import BINDINGS, ServedFleet, message_json, rest, serve_fleet, stream
from tests.support.clients.faults import fault
from tests.support.processes.fleet import Fleet, Gateway, running_fleet
from tests.support.waiting import LIMIT, eventually


def ready(gateway: Gateway) -> tuple[int, dict[str, Any]]:
    answer = httpx.get(f"{gateway.url}/health/ready", timeout=LIMIT)
    return answer.status_code, answer.json()


def live(gateway: Gateway) -> int:
    return httpx.get(f"{gateway.url}/health/live", timeout=LIMIT).status_code


def wait_for_readiness(gateway: Gateway, status: int, part: str) -> str:
    """Wait until the readiness check responds with `status`, and until `part` is a cause if `status` is 503. Return the
    text of `part`."""

    def readiness_text() -> str | None:
        code, body = ready(gateway)
        return body[part] if code == status and (body[part] == "ok") == (status == 200) else None

    return eventually(readiness_text, what=f"readiness answers {status} because of {part}") or ""


@pytest.mark.each_kind
def test_with_everything_there_it_is_ready(tmp_path: Path, broker: str) -> None:
    with serve_fleet(tmp_path, broker, grpc=False) as served_fleet:
        fine = (200, {"status": "ok", "store": "ok", "broker": "ok", "workers": "ok"})
        eventually(lambda: ready(served_fleet.gateway) == fine, what="it is ready")
        assert live(served_fleet.gateway) == 200


def test_without_a_worker_it_is_not_ready(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    assert "no worker answered" in wait_for_readiness(gateway, 503, "workers")
    assert live(gateway) == 200

    worker = fleet.worker()
    wait_for_readiness(gateway, 200, "workers")

    worker.kill()
    assert "no worker answered" in wait_for_readiness(gateway, 503, "workers")


def test_a_worker_that_consumes_nothing_does_not_count(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    fleet.worker(pool="solo")
    wait_for_readiness(gateway, 200, "workers")

    fleet.command("control", "cancel_consumer", fleet.queue)

    assert wait_for_readiness(gateway, 503, "workers") == "no worker consumes a queue"


def test_a_gateway_stays_ready_while_one_of_two_workers_is_drained(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    drained_worker = fleet.worker(pool="threads")
    fleet.worker(pool="threads")
    wait_for_readiness(gateway, 200, "workers")

    fleet.command("control", "--destination", fleet.node_name(drained_worker), "cancel_consumer", fleet.queue)

    codes: list[int] = []

    def is_probed_often() -> bool:
        codes.append(ready(gateway)[0])
        return len(codes) == 5

    eventually(is_probed_often, every=RESULT_FRESH_FOR)
    assert codes == [200] * 5


@pytest.mark.each_kind
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo"])
def test_a_worker_without_remote_control_counts_while_it_consumes(tmp_path: Path, broker: str, pool: str) -> None:
    with running_fleet(tmp_path, broker, TEST_ALONE="1", TEST_NO_REMOTE_CONTROL="1") as fleet:
        gateway = fleet.gateway()
        wait_for_readiness(gateway, 503, "workers")

        worker = fleet.worker(pool=pool)
        wait_for_readiness(gateway, 200, "workers")

        worker.kill()
        assert "no worker answered" in wait_for_readiness(gateway, 503, "workers")


def test_without_its_broker_it_is_not_ready_and_shows_no_address(tmp_path: Path) -> None:
    with running_fleet(tmp_path, CELERY_BROKER_URL="amqp://guest:topsecret@127.0.0.1:1//") as fleet:
        gateway = fleet.gateway()

        text = wait_for_readiness(gateway, 503, "broker")

        _, body = ready(gateway)
        assert text.startswith(("unreachable", "no answer"))
        assert body["store"] == "ok"
        assert body["workers"].startswith("unknown")
        assert "topsecret" not in str(body)
        assert "127.0.0.1" not in str(body)
        assert live(gateway) == 200


def test_a_frozen_store_is_reported_and_does_not_prevent_a_shutdown(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    assert fleet.redis.process is not None
    fleet.redis.process.send_signal(signal.SIGSTOP)
    try:
        code, body = ready(gateway)
        exit_code = gateway.stop(within=20)
    finally:
        fleet.redis.process.send_signal(signal.SIGCONT)

    assert code == 503
    assert body["store"] != "ok"
    assert exit_code != -signal.SIGKILL, "it ends when it is told to, whatever hangs"


@pytest.fixture(scope="module")
def storeless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedFleet]:
    """Gateway whose store has been killed while it serves."""
    with serve_fleet(tmp_path_factory.mktemp("fleet"), pool=None) as served_fleet:
        assert rest(served_fleet.gateway, "GET", "/tasks").status_code == 200
        assert served_fleet.fleet.redis.process is not None
        served_fleet.fleet.redis.process.kill()
        served_fleet.fleet.redis.process.wait()
        yield served_fleet


class TestWithoutItsStore:
    @pytest.mark.parametrize("binding", BINDINGS)
    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("SendMessage", message_json()),
            ("SendStreamingMessage", message_json()),
            ("GetTask", {"id": "x"}),
            ("ListTasks", {}),
            ("CancelTask", {"id": "x"}),
            ("SubscribeToTask", {"id": "x"}),
        ],
        ids=lambda value: value if isinstance(value, str) else "",
    )
    async def test_requests_are_refused_as_unavailable(
        self, storeless: ServedFleet, binding: str, method: str, params: dict[str, Any]
    ) -> None:
        received_fault = await fault(storeless.gateway, binding, method, params)

        assert received_fault.reason == "SERVICE_UNAVAILABLE"

    def test_readiness_names_the_cause(self, storeless: ServedFleet) -> None:
        assert wait_for_readiness(storeless.gateway, 503, "store") != "ok"
        assert live(storeless.gateway) == 200

    def test_it_serves_again_when_the_store_is_back(self, storeless: ServedFleet) -> None:
        storeless.fleet.redis.start()
        storeless.fleet.worker(pool="threads")

        wait_for_readiness(storeless.gateway, 200, "workers")
        task = rest(storeless.gateway, "POST", "/message:send", message_json("back")).json()["task"]

        assert task["artifacts"][0]["parts"] == [{"text": "back"}]
        assert "Traceback" not in storeless.gateway.output()


async def test_a_stream_outlives_a_store_that_freezes_for_a_while(tmp_path: Path) -> None:
    with serve_fleet(tmp_path, pool="threads", grpc=False) as served_fleet:
        process = served_fleet.fleet.redis.process
        assert process is not None
        async with (
            httpx.AsyncClient(timeout=LIMIT) as http,
            stream(http, served_fleet.gateway, "/message:stream", message_json("20 0.1"), agent="pace") as events,
        ):
            received_frames = [await anext(events) for _ in range(5)]
            process.send_signal(signal.SIGSTOP)
            try:
                wait_for_readiness(served_fleet.gateway, 503, "store")
            finally:
                process.send_signal(signal.SIGCONT)
            received_frames += [frame async for frame in events]

    assert [frame.version for frame in received_frames] == list(range(1, len(received_frames) + 1))
    assert received_frames[-1].data["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"
