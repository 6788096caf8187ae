"""Fleet for chaos tests, whose processes can be replaced and whose store and broker can be interrupted."""

from __future__ import annotations

import asyncio
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import redis
import redis.asyncio

from tests.support.chaos.agents import MARKS, PROCESS
from tests.support.chaos.plan import CLOCKWORK, LEASE
from tests.support.processes.fleet import RABBITMQ_URL, Fleet, Process, free_port
from tests.support.processes.moved_clock import MovedClock
from tests.support.processes.restarts import MortalRedis, allow_writes, refuse_writes
from tests.support.processes.small_disk import SmallDisk
from tests.support.waiting import eventually_async

WORKERS = (("prefork", 3), ("prefork", 3), ("threads", 10))
GATEWAYS = 2
WATCHERS = 2


class PortRedis(MortalRedis):
    """MortalRedis that listens on a port and syncs the append-only file after every write. If `primary` is given, the
    server is a replica of the server on that port."""

    def __init__(
        self,
        folder: Path,
        server: Path | None = None,
        clock: MovedClock | None = None,
        port: int | None = None,
        primary: int | None = None,
    ) -> None:
        super().__init__(folder, server, clock)
        self.folder = folder
        self.port = port or free_port()
        self._primary = primary

    @property
    def url(self) -> str:
        """URL of the server."""
        return f"redis://127.0.0.1:{self.port}/0"

    def _command(self) -> list[str]:
        command = super()._command()
        command[command.index("--port") + 1] = str(self.port)
        command += ["--bind", "127.0.0.1", "--appendfsync", "always"]
        return command if self._primary is None else [*command, "--replicaof", "127.0.0.1", str(self._primary)]


class BreakableProxy:
    """TCP proxy for a broker that other tests use at the same time."""

    def __init__(self, host: str, port: int) -> None:
        self.port = free_port()
        self._to = (host, port)
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._pipes: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._relay, "127.0.0.1", self.port)

    async def shut(self) -> None:
        """Reset all connections and refuse new connections until `open`."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for writer in self._open:
            writer.transport.abort()

    async def hold(self, seconds: float) -> None:
        """Forward no bytes for some seconds."""
        self._flows.clear()
        await asyncio.sleep(seconds)
        self._flows.set()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer, far_writer}
        self._open |= ends
        pipes = {
            asyncio.create_task(self._pipe(reader, far_writer)),
            asyncio.create_task(self._pipe(far_reader, writer)),
        }
        self._pipes |= pipes
        with suppress(asyncio.CancelledError):  # the test is over
            await asyncio.wait(pipes)
        self._pipes -= pipes
        self._open -= ends

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                await self._flows.wait()
                writer.write(data)
                await writer.drain()
        writer.close()


@dataclass
class ProcessSlot:
    """Slot of the fleet for a process and its successors.

    Attributes:
        name: Kind and number of the slot.
        arguments: Arguments of ``celery``.
        ready: Function that returns True when the process serves.
        state: "up", "frozen", or "down" (dead or starting).
        process: Current process.
        generation: Number of processes that were started in the slot.
        url: URL of a gateway.
    """

    name: str
    arguments: list[str]
    ready: Callable[[Process], Awaitable[bool]]
    state: str = "down"
    process: Process | None = None
    generation: int = 0
    url: str = ""

    @property
    def kind(self) -> str:
        """Kind of the process: "worker", "gateway" or "watcher"."""
        return self.name.split("-")[0]

    @property
    def prefork(self) -> bool:
        """True for a worker with the prefork pool."""
        return "prefork" in self.arguments


@dataclass
class Incident:
    """Disruption or unexpected exit of a process or server.

    Attributes:
        kind: Verb and target of the disruption.
        process: Name of the process, or "" for a server.
        pid: Id of the process, or 0 for a server.
        begin: Wall-clock time in seconds.
        end: Wall-clock time at which the previous state was restored, or infinity before that.
    """

    kind: str
    process: str
    pid: int
    begin: float
    end: float = field(default=float("inf"))

    @property
    def of(self) -> str:
        """Kind of the process: "worker", "child", "gateway", "watcher", "store" or "broker"."""
        return self.kind.split()[-1]


class ChaosFleet(Fleet):
    """Fleet with a store and a broker that can be interrupted.

    Args:
        folder: Folder of the processes' files.
        broker: "redis", "rabbitmq", or "store". For "store", the broker is another database of the store's server.
        workers: Pool and concurrency of each worker.
        gateways: Number of gateways.
        watchers: Number of watchers.
        server: Path of redis-server for store and broker, or None for the default.
        clock: Clock of the store.
        disk: Disk of the store's data.
        failover: Run a replica of the store.
    """

    def __init__(
        self,
        folder: Path,
        broker: str,
        *,
        workers: Sequence[tuple[str, int]] = WORKERS,
        gateways: int = GATEWAYS,
        watchers: int = WATCHERS,
        server: Path | None = None,
        clock: MovedClock | None = None,
        disk: SmallDisk | None = None,
        failover: bool = False,
    ) -> None:
        marks = folder / "marks"
        marks.mkdir()
        servers = "redis" if broker == "store" else broker
        super().__init__(folder, servers, app="tests.support.chaos.agents", **CLOCKWORK, **{MARKS: str(marks)})
        self.redis.stop()
        self.marks = marks
        self._server, self.clock, self._disk = server, clock, disk
        data_folder = disk.folder if disk else folder
        self.clock_moves: list[tuple[float, float]] = [(wall_time(), 0.0)]
        self.redis = self.store = PortRedis(data_folder / "store", server, clock)
        self.replica = self._replica(data_folder / "replica") if failover else None
        self.broker = PortRedis(folder / "broker", server) if broker == "redis" else None
        self.proxy: BreakableProxy | None = None
        self._env["A2A_STORE_URL"] = self.store.url
        if broker == "store":
            self.broker_url = self._env["CELERY_BROKER_URL"] = self.store.url.removesuffix("/0") + "/1"
        elif self.broker is not None:
            self.broker_url = self._env["CELERY_BROKER_URL"] = self.broker.url
        else:
            parts = urlsplit(RABBITMQ_URL)
            self.proxy = BreakableProxy(parts.hostname or "127.0.0.1", parts.port or 5672)
            user = parts.netloc.rpartition("@")[0]
            through = parts._replace(netloc=f"{user}@127.0.0.1:{self.proxy.port}").geturl()
            self._env["CELERY_BROKER_URL"] = through
        self.slots = self._slots(workers, gateways, watchers)
        self.incidents: list[Incident] = []

    async def open(self) -> None:
        """Start all servers and processes."""
        await asyncio.to_thread(self.store.start)
        if self.replica is not None:
            await asyncio.to_thread(self.replica.start)
        if self.broker is not None:
            await asyncio.to_thread(self.broker.start)
        if self.proxy is not None:
            await self.proxy.open()
        await asyncio.gather(*(self.start_process(slot) for slot in self.slots))

    def stop(self) -> None:
        """Stop all servers and processes, including frozen ones."""
        for process in self.processes:
            process.signal_group(signal.SIGKILL)
        for server in (self.store, self.broker):
            if server is not None and server.process is not None:
                server.process.send_signal(signal.SIGCONT)
        super().stop()
        for server in (self.broker, self.replica):
            if server is not None:
                server.stop()
        if self._disk is not None:
            self._disk.unmount()

    def slots_of(self, kind: str) -> list[ProcessSlot]:
        """Return the slots of gateways, workers or watchers."""
        return [slot for slot in self.slots if slot.kind == kind]

    async def start_process(self, slot: ProcessSlot) -> None:
        """Start a new process in `slot` and wait until it serves."""
        slot.generation += 1
        name = f"{slot.name}.{slot.generation}"
        slot.process = self.start(name, *(a.replace("{name}", name) for a in slot.arguments), **{PROCESS: name})

        async def ready() -> bool:
            assert slot.process is not None
            return not slot.process.is_running or await slot.ready(slot.process)

        await eventually_async(ready, what=f"{name} is up")
        slot.state = "up"

    def children(self, slot: ProcessSlot) -> list[int]:
        """Return the ids of a prefork worker's child processes, oldest first."""
        assert slot.process is not None
        try:
            children = psutil.Process(slot.process.pid).children()
        except psutil.NoSuchProcess:
            return []
        return [child.pid for child in sorted(children, key=lambda c: c.pid)]

    async def restart_store(self, downtime: float) -> None:
        """Kill the store, and start it again after `downtime` seconds."""
        await _restart(self.store, downtime)

    async def restart_broker(self, downtime: float) -> None:
        """Kill the broker, and start it again after `downtime` seconds. For a shared broker, refuse connections for
        that time instead."""
        if self.broker is not None:
            await _restart(self.broker, downtime)
        if self.proxy is not None:
            await self.proxy.shut()
            await asyncio.sleep(downtime)
            await self.proxy.open()

    async def fail_over_store(self, downtime: float) -> bool:
        """Kill the store, and start a server with the replica's data on the same port after `downtime` seconds.

        Before that, pause writes to the store until the replica has caught up. The replica then has all confirmed
        writes.

        Returns:
            False, without a failover, if the store has no replica or the replica does not catch up in time.
        """
        store, replica = self.store, self.replica
        if replica is None:
            return False
        async with redis.asyncio.Redis.from_url(store.store_url) as client:
            try:
                await client.execute_command("CLIENT", "PAUSE", "5000", "WRITE")
                async with redis.asyncio.Redis.from_url(replica.store_url) as other:
                    await eventually_async(lambda: _has_all(client, other), what="the replica has all writes", within=4)
            except (redis.RedisError, AssertionError, TimeoutError):
                with suppress(redis.RedisError):
                    await client.execute_command("CLIENT", "UNPAUSE")
                return False
        store.die()
        replica.die()
        for server in (store, replica):
            server.stop()
        await asyncio.sleep(downtime)
        self.redis = self.store = PortRedis(replica.folder, self._server, self.clock, store.port)
        await asyncio.to_thread(self.store.start)
        shutil.rmtree(store.folder)
        self.replica = self._replica(store.folder)
        await asyncio.to_thread(self.replica.start)
        return True

    async def refuse_writes(self, server: PortRedis, why: str, seconds: float) -> None:
        """Make a server refuse writes for some seconds with the error "OOM" (out of memory) or "MISCONF" (unable to
        save)."""
        try:
            await asyncio.to_thread(refuse_writes, server, why)
            await asyncio.sleep(seconds)
        finally:
            await asyncio.to_thread(allow_writes, server)

    async def exhaust_disk(self, seconds: float) -> bool:
        """Fill the store's disk for some seconds. Restart servers that exited because they could not append to their
        file.

        Returns:
            False, without a change, if the store has no separate disk.
        """
        if self._disk is None:
            return False
        with self._disk.full():
            await asyncio.sleep(seconds)
        for server in (self.store, self.replica):
            if server is not None and server.process is not None and server.process.poll() is not None:
                await asyncio.to_thread(server.die)  # including the child process that saves
                await asyncio.to_thread(server.start)
        return True

    async def move_store_clock(self, offset: float) -> None:
        """Set the store's clock `offset` seconds ahead of this machine's clock."""
        if self.clock is not None:
            self.clock.set_offset(offset)
            self.clock_moves.append((wall_time(), offset))

    async def cut_store(self) -> None:
        """Kill all client connections of the store."""
        await _close_connections(self.store)

    async def cut_broker(self) -> None:
        """Kill all client connections of the broker."""
        if self.broker is not None:
            await _close_connections(self.broker)
        if self.proxy is not None:
            await self.proxy.shut()
            await self.proxy.open()

    async def freeze_store(self, seconds: float) -> None:
        """Suspend the store with SIGSTOP for some seconds."""
        await _freeze(self.store, seconds)

    async def freeze_broker(self, seconds: float) -> None:
        """Suspend the broker for some seconds. For a shared broker, forward no bytes instead."""
        if self.broker is not None:
            await _freeze(self.broker, seconds)
        if self.proxy is not None:
            await self.proxy.hold(seconds)

    def _replica(self, folder: Path) -> PortRedis:
        return PortRedis(folder, self._server, self.clock, primary=self.store.port)

    def _slots(self, workers: Sequence[tuple[str, int]], gateways: int, watchers: int) -> list[ProcessSlot]:
        slots = []
        for number in range(gateways):
            url = f"http://127.0.0.1:{free_port()}"
            port = url.rpartition(":")[2]
            slots.append(ProcessSlot(f"gateway-{number}", ["a2a", "gateway", "--port", port], _serves(url), url=url))
        for number, (pool, concurrency) in enumerate(workers):
            arguments = ["worker", "-n", f"{{name}}-{self.queue}@%h", "-P", pool, "-c", str(concurrency), "-l", "INFO"]
            slots.append(ProcessSlot(f"worker-{number}", arguments, _has_printed(" ready.")))
        for number in range(watchers):
            slots.append(ProcessSlot(f"watcher-{number}", ["a2a", "watcher"], _has_printed("watcher started")))
        return slots


async def _restart(server: PortRedis, downtime: float) -> None:
    server.die()
    await asyncio.sleep(downtime)
    await asyncio.to_thread(server.start)


async def _close_connections(server: PortRedis) -> None:
    async with redis.asyncio.Redis.from_url(server.store_url) as client:
        for kind in ("normal", "pubsub"):
            await client.execute_command("CLIENT", "KILL", "TYPE", kind, "SKIPME", "yes")


async def _has_all(primary: redis.asyncio.Redis, replica: redis.asyncio.Redis) -> bool:
    """Return True if the replica has received and saved all writes of the primary."""
    at, has = await primary.info("replication"), await replica.info("replication")
    persistence = await replica.info("persistence")
    is_saved = (
        persistence["aof_enabled"]
        and not persistence["aof_rewrite_in_progress"]
        and not persistence["aof_rewrite_scheduled"]
    )
    is_linked = has["role"] == "slave" and has["master_link_status"] == "up"
    return bool(is_saved and is_linked and has["slave_repl_offset"] >= at["master_repl_offset"])


async def _freeze(server: PortRedis, seconds: float) -> None:
    assert server.process is not None
    server.process.send_signal(signal.SIGSTOP)
    await asyncio.sleep(seconds)
    server.process.send_signal(signal.SIGCONT)


def _has_printed(text: str) -> Callable[[Process], Awaitable[bool]]:
    async def ready(process: Process) -> bool:
        return text in process.output()

    return ready


def _serves(url: str) -> Callable[[Process], Awaitable[bool]]:
    async def ready(_: Process) -> bool:
        async with httpx.AsyncClient() as http:
            try:
                return (await http.get(f"{url}/health/live", timeout=2)).status_code == 200
            except httpx.HTTPError:
                return False

    return ready


def wall_time() -> float:
    """Return the wall-clock time in seconds since the epoch."""
    return time.time()


LEASE_AND_SCAN = LEASE + 1.0
"""Seconds within which a lost run is recovered if the store and a watcher are available."""
