"""Fleet on separate hosts, run with pytest-celery. Workers, watchers, gateways and brokers die or are cut off."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import pytest_docker_tools.wrappers.container
from pytest_celery import (
    DEFAULT_WORKER_CONTAINER_TIMEOUT,
    RABBITMQ_CONTAINER_TIMEOUT,
    CeleryTestSetup,
    CeleryTestWorker,
    CeleryWorkerCluster,
)
from pytest_docker_tools import build, container, fxtr

from a2a_celery.lifecycle import EventId
from tests.support import ROOT
from tests.support.clients.bindings import V1, message_json
from tests.support.waiting import LIMIT, eventually
from tests.tiers import at_night
from workers.story import WORDS

from .engine import IMAGE
from .hosts import (
    GatewayCluster,
    GatewayContainer,
    Hosts,
    ListeningRabbitMQ,
    WatcherCluster,
    WatcherContainer,
    WorkerContainer,
    cut_off,
    environment,
    restart,
)

STORY = "".join(f"{word} " for word in WORDS)

EACH_BROKER = pytest.mark.parametrize(
    "celery_broker",
    at_night(["celery_rabbitmq_broker", "celery_redis_broker"], merge=["celery_rabbitmq_broker"]),
    indirect=True,
)

image = build(path=str(ROOT), dockerfile="compose/Dockerfile", tag=IMAGE, network_mode="host", rm=True)


def project_container(command: Any, wrapper: type, **options: Any) -> Any:
    """Return a fixture for a container of the image that compose/Dockerfile builds."""
    return container(
        image="{image.id}",
        environment=fxtr("fleet_env"),
        network="{default_pytest_celery_network.name}",
        wrapper_class=wrapper,
        timeout=DEFAULT_WORKER_CONTAINER_TIMEOUT,
        command=command,
        init=True,
        read_only=True,
        tmpfs={"/tmp": ""},
        **options,
    )


default_worker_container = project_container(fxtr("default_worker_command"), WorkerContainer)
other_worker_container = project_container(fxtr("default_worker_command"), WorkerContainer)
default_rabbitmq_broker = container(
    image="{default_rabbitmq_broker_image}",
    ports=fxtr("default_rabbitmq_broker_ports"),
    network="{default_pytest_celery_network.name}",
    wrapper_class=ListeningRabbitMQ,
    timeout=RABBITMQ_CONTAINER_TIMEOUT,
)
gateway_container = project_container(
    list(GatewayContainer.COMMAND), GatewayContainer, ports={GatewayContainer.PORT: None}
)
watcher_container = project_container(list(WatcherContainer.COMMAND), WatcherContainer)
other_watcher_container = project_container(list(WatcherContainer.COMMAND), WatcherContainer)


@pytest.fixture(scope="session", autouse=True)
def from_outside() -> Iterator[None]:
    """Reach containers through the ports that they publish on this host, even if this host is a container itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pytest_docker_tools.wrappers.container, "tests_inside_container", lambda: False)
        yield


@pytest.fixture
def fleet_env(celery_worker_cluster_config: dict[str, Any]) -> dict[str, str]:
    return environment(celery_worker_cluster_config)


@pytest.fixture
def default_worker_container_cls() -> type[WorkerContainer]:
    return WorkerContainer


@pytest.fixture
def celery_worker_cluster(
    celery_worker: CeleryTestWorker, other_worker_container: WorkerContainer
) -> Iterator[CeleryWorkerCluster]:
    cluster = CeleryWorkerCluster(celery_worker, CeleryTestWorker(other_worker_container, app=celery_worker.app))
    yield cluster
    cluster.teardown()


@pytest.fixture
def hosts(
    celery_setup: CeleryTestSetup,
    gateway_container: GatewayContainer,
    watcher_container: WatcherContainer,
    other_watcher_container: WatcherContainer,
) -> Iterator[Hosts]:
    """Two workers, two watchers and a gateway with one broker and one store."""
    gateways = GatewayCluster(gateway_container)
    watchers = WatcherCluster(watcher_container, other_watcher_container)
    for cluster in (gateways, watchers):
        eventually(cluster.ready, every=0.2, what=f"{type(cluster).__name__} is ready")
    yield Hosts(celery_setup, gateways, watchers)
    gateways.teardown()
    watchers.teardown()


def text_of(task: dict[str, Any]) -> str:
    [artifact] = task["artifacts"]
    return "".join(part["text"] for part in artifact["parts"])


@EACH_BROKER
def test_a_worker_dies_and_comes_back(hosts: Hosts) -> None:
    tasks = [hosts.begin("story", "tell") for _ in range(24)]  # three for each process of both workers
    victim, survivor = hosts.workers
    eventually(lambda: len(hosts.task_ids("story", "WORKING")) >= 6, every=0.2, what="both work")

    victim.kill()

    for task_id in tasks:
        assert text_of(hosts.wait_for("story", task_id, "COMPLETED")) == STORY
    restart(victim)
    survivor.kill()
    last_task = hosts.begin("echo", "again")
    assert text_of(hosts.wait_for("echo", last_task, "COMPLETED")) == "again"
    assert hosts.runner_of(last_task) is victim


@EACH_BROKER
def test_a_worker_that_is_cut_off_changes_nothing_any_more(hosts: Hosts) -> None:
    slow_id, story_id = hosts.begin("slow", "300"), hosts.begin("story", "tell")  # the first outlasts the test
    hosts.wait_for("slow", slow_id, "WORKING")
    worker = hosts.runner_of(slow_id)

    with cut_off(worker):
        failed_task = hosts.wait_for("slow", slow_id, "FAILED")
        assert text_of(hosts.wait_for("story", story_id, "COMPLETED")) == STORY

    assert failed_task["status"]["message"]["parts"] == [{"text": "The worker was lost."}]
    stop_line = f"run {slow_id}.1 is stopped: another worker has its lease"
    eventually(lambda: stop_line in worker.logs(), every=0.2, what="the worker finds that it lost it")
    assert hosts.read("slow", slow_id) == failed_task
    hosts.wait_for_consumer(worker)
    [other] = [node for node in hosts.workers if node is not worker]
    other.kill()
    last_task = hosts.begin("echo", "back")
    hosts.wait_for("echo", last_task, "COMPLETED")


@pytest.mark.parametrize("celery_broker", ["celery_redis_broker"], indirect=True)  # the broker does not matter
def test_one_watcher_is_enough_and_without_any_tasks_wait(hosts: Hosts) -> None:
    first, second = hosts.watchers
    first.kill()
    task_id = hosts.begin("slow", "60")
    hosts.wait_for("slow", task_id, "WORKING")
    hosts.runner_of(task_id).kill()
    hosts.wait_for("slow", task_id, "FAILED")

    other = hosts.begin("slow", "60")
    hosts.wait_for("slow", other, "WORKING")
    with cut_off(second):
        hosts.runner_of(other).kill()
        eventually(
            lambda: "tick failed" in second.logs(), every=0.2, what="the watcher reports the store as unavailable"
        )
        assert hosts.state("slow", other) == "WORKING"
    hosts.wait_for("slow", other, "FAILED")


@EACH_BROKER
def test_a_broker_dies_and_a_gateway_under_a_stream(hosts: Hosts) -> None:
    broker = hosts.setup.broker
    broker.kill()
    waiting_tasks = [hosts.begin("echo", f"{number}") for number in range(4)]
    assert {hosts.state("echo", task_id) for task_id in waiting_tasks} == {"SUBMITTED"}
    restart(broker)
    for number, task_id in enumerate(waiting_tasks):
        assert text_of(hosts.wait_for("echo", task_id, "COMPLETED")) == f"{number}"

    event_ids: list[str] = []
    with pytest.raises(httpx.HTTPError):
        follow_and_kill(hosts, event_ids)
    restart(hosts.gateways[0])
    [task_id] = hosts.task_ids("slow")  # the task may already be COMPLETED
    url = f"{hosts.gateways[0].url}/agents/slow/tasks/{task_id}:subscribe"
    event_ids += ids_of(url, None, {"Last-Event-ID": event_ids[-1]})
    assert [EventId.parse(event_id).version for event_id in event_ids] == list(range(1, len(event_ids) + 1))
    assert text_of(hosts.wait_for("slow", task_id, "COMPLETED")) == "20 steps done"


def follow_and_kill(hosts: Hosts, event_ids: list[str]) -> None:
    """Follow an agent with twenty steps of one second, and kill its gateway during the stream."""
    url = f"{hosts.gateways[0].url}/agents/slow/message:stream"
    for event_id in ids_of(url, message_json("20"), {}):
        event_ids.append(event_id)
        if len(event_ids) == 5:
            hosts.gateways[0].kill()


def ids_of(url: str, body: Any, headers: dict[str, str]) -> Iterator[str]:
    """Yield the ids of a stream's events."""
    with httpx.stream("POST", url, json=body, headers={**V1, **headers}, timeout=LIMIT) as answer:
        assert answer.status_code == 200, answer.read()
        yield from (line.removeprefix("id:").strip() for line in answer.iter_lines() if line.startswith("id:"))
