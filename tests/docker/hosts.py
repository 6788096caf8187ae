"""Gateways, workers and watchers as pytest-celery's containers, nodes and clusters, each on a separate host."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import docker
from pytest_celery import (
    CeleryTestCluster,
    CeleryTestContainer,
    CeleryTestNode,
    CeleryTestSetup,
    CeleryWorkerContainer,
    RabbitMQContainer,
)

from tests.support.chaos.clients import ENDED
from tests.support.clients.bindings import message_json, rest
from tests.support.waiting import eventually

LEASE = 3.0
"""Seconds without a renewal after which a worker counts as lost."""


def environment(cluster_config: dict[str, Any]) -> dict[str, str]:
    """Return the environment of the fleet's processes: broker, store, and short timeouts."""
    [broker] = cluster_config["celery_broker_cluster_config"]["urls"]
    [store] = cluster_config["celery_backend_cluster_config"]["urls"]
    return {
        "CELERY_BROKER_URL": broker,
        "A2A_STORE_URL": store.removesuffix("/0") + "/1",
        "A2A_LEASE_TTL": f"{LEASE:g}",
        "A2A_REDISPATCH_AFTER": "3",
    }


class ListeningRabbitMQ(RabbitMQContainer):
    """RabbitMQ that is ready when it listens, because not every image logs its readiness."""

    ready_prompt = None


class WorkerContainer(CeleryWorkerContainer):
    """Stock worker from this project's image with the sample agents."""

    @classmethod
    def command(cls, *args: str, **kwargs: Any) -> list[str]:
        return ["celery", "worker", "-l", cls.log_level(), "-n", f"{cls.worker_name()}@%h", "-c", "4", *args]

    @classmethod
    def initial_env(cls, celery_worker_cluster_config: dict[str, Any], initial: Any = None) -> dict[str, str]:
        return {**environment(celery_worker_cluster_config), **(initial or {})}


class GatewayContainer(CeleryTestContainer):
    """Container of a gateway."""

    PORT = "8000/tcp"
    COMMAND = ("celery", "a2a", "gateway", "--host", "0.0.0.0", "--port", "8000")

    @property
    def ready_prompt(self) -> str:
        return "Uvicorn running on"


class WatcherContainer(CeleryTestContainer):
    """Container of a watcher."""

    COMMAND = ("celery", "a2a", "watcher")

    @property
    def ready_prompt(self) -> str:
        return "watcher started with the roles: "


class GatewayNode(CeleryTestNode):
    """Host of a gateway."""

    container: GatewayContainer

    @property
    def url(self) -> str:
        """Address from this machine. The port changes after each start."""
        self.container.reload()
        return f"http://127.0.0.1:{self.container._wait_port(GatewayContainer.PORT)}"


class WatcherNode(CeleryTestNode):
    """Host of a watcher."""


class GatewayCluster(CeleryTestCluster):
    """Cluster of all gateways."""

    def _set_nodes(self, *nodes: Any, node_cls: type[CeleryTestNode] = GatewayNode) -> tuple[CeleryTestNode, ...]:
        return super()._set_nodes(*nodes, node_cls=node_cls)


class WatcherCluster(CeleryTestCluster):
    """Cluster of all watchers."""

    def _set_nodes(self, *nodes: Any, node_cls: type[CeleryTestNode] = WatcherNode) -> tuple[CeleryTestNode, ...]:
        return super()._set_nodes(*nodes, node_cls=node_cls)


@dataclass
class Hosts:
    """Fleet on several hosts, and the operations of a client."""

    setup: CeleryTestSetup
    gateways: GatewayCluster
    watchers: WatcherCluster

    @property
    def workers(self) -> list[CeleryTestNode]:
        return list(self.setup.worker_cluster)

    def wait_for_consumer(self, worker: CeleryTestNode) -> None:
        """Wait until the worker consumes its queue. After a failed connection, Celery waits for up to half a minute
        before the next attempt."""

        def consumes() -> bool:
            return bool(self.setup.app.control.inspect([worker.hostname()], timeout=1, limit=1).active_queues())

        eventually(consumes, every=0.2, what=f"{worker.hostname()} consumes its queue")

    def begin(self, agent: str, text: str) -> str:
        """Send a message. Return the task's id without waiting for the task."""
        body = message_json(text) | {"configuration": {"returnImmediately": True}}
        answer = rest(self.gateways[0], "POST", "/message:send", body, agent=agent)
        assert answer.status_code == 200, answer.text
        task_id: str = answer.json()["task"]["id"]
        return task_id

    def read(self, agent: str, task_id: str) -> dict[str, Any]:
        """Return the current task from the first gateway."""
        task: dict[str, Any] = rest(self.gateways[0], "GET", f"/tasks/{task_id}", agent=agent).json()
        return task

    def task_ids(self, agent: str, state: str = "") -> list[str]:
        """Return the ids of the tasks of `agent` in the state `state`, or in any state if `state` is ""."""
        query = "/tasks?pageSize=100" + (f"&status=TASK_STATE_{state}" if state else "")
        return [task["id"] for task in rest(self.gateways[0], "GET", query, agent=agent).json()["tasks"]]

    def state(self, agent: str, task_id: str) -> str:
        return str(self.read(agent, task_id)["status"]["state"]).removeprefix("TASK_STATE_")

    def wait_for(self, agent: str, task_id: str, state: str) -> dict[str, Any]:
        """Wait until the task is in the state `state`, and return the task. If the task ends in another state, fail
        with the task."""

        def is_in_state() -> bool:
            task = self.read(agent, task_id)
            is_reached = bool(task["status"]["state"] == f"TASK_STATE_{state}")
            assert is_reached or task["status"]["state"] not in ENDED, task
            return is_reached

        eventually(is_in_state, every=0.2, what=f"{agent} {task_id} is {state}")
        return self.read(agent, task_id)

    def runner_of(self, task_id: str, run: int = 1) -> CeleryTestNode:
        """Wait until a worker has received a run, and return the worker."""
        name = f"[{task_id}.{run}]"

        def running_node() -> CeleryTestNode | None:
            return next((worker for worker in self.workers if name in worker.logs()), None)

        worker = eventually(running_node, every=0.2, what=f"a worker gets {name}")
        assert worker is not None
        return worker


@contextmanager
def cut_off(node: CeleryTestNode) -> Iterator[None]:
    """Disconnect the host's network while the block runs. Its processes continue."""
    node.container.reload()
    [name] = node.container.attrs["NetworkSettings"]["Networks"]
    network = docker.from_env().networks.get(name)
    network.disconnect(node.container.id)
    try:
        yield
    finally:
        network.connect(node.container.id, aliases=[node.hostname().rpartition("@")[2]])


def restart(node: CeleryTestNode) -> None:
    """Restart a node and wait until it is ready. Older lines of its log do not count, because they contain the first
    start."""
    since = time.time()
    node.restart()
    prompt = node.container.ready_prompt

    def ready() -> bool:
        return prompt is None or prompt in node.container._container.logs(since=int(since)).decode()

    eventually(ready, every=0.2, what=f"{node.name()} is ready again")
    eventually(node.ready, every=0.2, what=f"{node.name()} is reached")
