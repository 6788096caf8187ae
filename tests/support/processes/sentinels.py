"""Redis primary with replicas and Sentinels, as temporary processes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import MasterNotFoundError, Sentinel

from tests.support.processes.fleet import free_port
from tests.support.processes.restarts import installed_servers
from tests.support.waiting import eventually

MASTER_NAME = "mymaster"
LOCALHOST = "127.0.0.1"


class SentinelGroup:
    """Primary, replicas and three Sentinels, each on a port of 127.0.0.1.

    Args:
        folder: Folder of the processes' files.
        server: Path of redis-server, or None for the newest installed one.
        replicas: Number of replicas.
        options: Additional options of each server and each Sentinel.
        sentinel_lines: Additional lines for the configuration of each Sentinel.
        client: Options of redis-py for a server.
        sentinel_client: Options of redis-py for a Sentinel.
        port_option: Name of the option for the port.
        down_after_ms: Milliseconds of silence after which a primary is replaced.
    """

    def __init__(
        self,
        folder: Path,
        *,
        server: Path | None = None,
        replicas: int = 2,
        options: Sequence[str] = (),
        sentinel_lines: Sequence[str] = (),
        client: Mapping[str, Any] | None = None,
        sentinel_client: Mapping[str, Any] | None = None,
        port_option: str = "port",
        down_after_ms: int = 1000,
    ) -> None:
        self._folder = folder
        self._program = server or installed_servers()[-1]
        self._options = options
        self._sentinel_lines = sentinel_lines
        client_options: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), "socket_timeout": 1}
        self._client = {**client_options, **(client or {})}
        self._sentinel_client = {**client_options, **(sentinel_client or {})}
        self._port_option = port_option
        self._down_after_ms = down_after_ms
        self.ports = [free_port() for _ in range(1 + replicas)]
        self.sentinel_ports = [free_port() for _ in range(3)]
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self._sentinels = Sentinel(
            [(LOCALHOST, port) for port in self.sentinel_ports], sentinel_kwargs=self._sentinel_client
        )

    @property
    def hosts(self) -> str:
        """Addresses of the Sentinels in the format of a store URL."""
        return ",".join(f"{LOCALHOST}:{port}" for port in self.sentinel_ports)

    @property
    def store_url(self) -> str:
        """Store URL, without passwords and TLS options."""
        return f"sentinel://{self.hosts}/0?master_name={MASTER_NAME}"

    def broker_url(self, database: int = 1) -> str:
        """Return the broker URL in the format of kombu and Celery."""
        return ";".join(f"sentinel://{LOCALHOST}:{port}/{database}" for port in self.sentinel_ports)

    def start(self) -> None:
        """Start all processes. Wait until each Sentinel knows the primary, all replicas and the other Sentinels."""
        primary, *replicas = self.ports
        self._launch(primary)
        for port in replicas:
            self._launch(port, "--replicaof", LOCALHOST, str(primary))
        eventually(lambda: self.online_replicas() == len(replicas), what="the replicas follow the primary")
        for port in self.sentinel_ports:
            self._launch_sentinel(port)
        eventually(self._is_known_to_all, what="the Sentinels know all servers and each other")

    def stop(self) -> None:
        """Kill all processes."""
        self._sentinels.close()
        for process in self.processes.values():
            process.kill()
            process.wait()

    def primary(self) -> int:
        """Return the port of the primary that the Sentinels report, or 0 if they report none."""
        try:
            return int(self._sentinels.discover_master(MASTER_NAME)[1])
        except (MasterNotFoundError, redis.RedisError):
            return 0

    def kill_primary(self) -> int:
        """Kill the primary with SIGKILL and return its port."""
        port = self.primary()
        self.processes[port].kill()
        self.processes[port].wait()
        return port

    def wait_for_failover(self, killed_port: int) -> int:
        """Wait until a server other than the one on `killed_port` is the primary, and return the new primary's port."""

        def is_writable() -> int:
            port = self.primary()
            if port in (0, killed_port):
                return 0
            with self.client(port) as client:
                return port if client.role()[0] == b"master" else 0

        return eventually(is_writable, what="a replica is promoted")

    def restart(self, port: int) -> None:
        """Start the killed server on `port` again. The Sentinels make the server a replica."""
        self._launch(port)

    def client(self, port: int) -> redis.Redis:
        """Return a client of the server on `port`."""
        return redis.Redis(LOCALHOST, port, **self._client)

    def online_replicas(self) -> int:
        """Return the number of replicas that follow the primary."""
        try:
            with self.client(self.primary() or self.ports[0]) as client:
                info = client.info("replication")
        except redis.RedisError:
            return 0
        return sum(info[f"slave{i}"]["state"] == "online" for i in range(info["connected_slaves"]))

    def _launch(self, port: int, *options: str) -> None:
        folder = self._folder / str(port)
        folder.mkdir(parents=True, exist_ok=True)
        command = [str(self._program), f"--{self._port_option}", str(port), "--dir", str(folder), "--save", ""]
        command += ["--bind", LOCALHOST, "--repl-diskless-sync", "yes", "--repl-diskless-sync-delay", "0"]
        self._start(port, [*command, *self._options, *options])

    def _launch_sentinel(self, port: int) -> None:
        folder = self._folder / str(port)
        folder.mkdir(parents=True, exist_ok=True)
        lines = [
            f"{self._port_option} {port}",
            f"bind {LOCALHOST}",
            f"sentinel monitor {MASTER_NAME} {LOCALHOST} {self.ports[0]} 2",
            f"sentinel down-after-milliseconds {MASTER_NAME} {self._down_after_ms}",
            f"sentinel failover-timeout {MASTER_NAME} 5000",
            f"sentinel parallel-syncs {MASTER_NAME} 2",
            *self._sentinel_lines,
        ]
        (folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        self._start(port, [str(self._program), str(folder / "sentinel.conf"), "--sentinel"])

    def _start(self, port: int, command: list[str]) -> None:
        with (self._folder / str(port) / "log").open("ab") as log:
            self.processes[port] = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)

    def _is_known_to_all(self) -> bool:
        for port in self.sentinel_ports:
            try:
                with redis.Redis(LOCALHOST, port, **self._sentinel_client) as sentinel:
                    state = sentinel.sentinel_masters()[MASTER_NAME]
            except redis.RedisError:
                return False
            if state["num-slaves"] < len(self.ports) - 1 or state["num-other-sentinels"] < 2:
                return False
        return True


@contextmanager
def running_sentinels(folder: Path, **options: Any) -> Iterator[SentinelGroup]:
    """Run a `SentinelGroup`."""
    group = SentinelGroup(folder, **options)
    try:
        group.start()
        yield group
    finally:
        group.stop()
