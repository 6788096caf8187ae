"""Cancellation of runs that operators revoke with ``app.control.revoke``, for example in Flower.

A worker applies a revoke command when it receives the message of the run, which may be hours later. A worker of the
solo pool does not read broadcasts while it executes a task, and a command without a receiver is lost. The watcher
therefore also receives the commands, and cancels the runs in the store. The watcher does not reply, so ``inspect`` and
``ping`` do not list the watcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from socket import gethostname
from threading import Event, Thread
from typing import Any
from uuid import uuid4

from celery import Celery
from kombu.connection import Connection
from kombu.mixins import ConsumerMixin

from ..clock import SYSTEM_CLOCK, Clock
from ..dispatch.connection import guard
from ..errors import StoreUnavailable
from ..lifecycle import final_event, is_terminal
from ..lifecycle.outcomes import revoked_by
from ..lifecycle.references import RunRef
from ..store import AsyncStore, Keys
from ..store.client.connection import run_with_retry
from ..store.runs.commands import Unchanged, revoke_run
from ..store.runs.release import read_activities
from ..store.tasks.commands import read_task
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

TERMINATE_AFTER = 1.0
"""Seconds for which a worker can terminate a run through its pool, before the run is cancelled in the store."""

RECONNECT_POLICY = {"interval_start": 0.2, "interval_step": 0.3, "interval_max": 2.0}

MAX_EXPLAINED = 10
"""Maximum number of ids in a revoke command that are looked up because they are not ids of runs."""

RETRY_INTERVAL = 10.0
"""Seconds between two attempts to listen, if the broker is misconfigured."""


@dataclass(frozen=True, slots=True)
class Revoke:
    """Command that revokes Celery tasks by id. With `terminate`, running tasks are also terminated."""

    celery_ids: tuple[str, ...]
    terminate: bool

    @classmethod
    def of(cls, broadcast: Any) -> Revoke | None:
        """Parse a remote-control command. Return None if it does not revoke tasks, or addresses specific workers."""
        match broadcast:
            case {"destination": [_, *_]} | {"pattern": str()}:
                return None
            case {"method": "revoke", "arguments": {"task_id": str() | list() as ids, **options}}:
                terminate = bool(options.get("terminate"))
            case {"method": "terminate", "arguments": {"task_id": str() | list() as ids}}:
                terminate = True
            case _:
                return None
        return cls(tuple(map(str, [ids] if isinstance(ids, str) else ids)), terminate)


class RevokeListener:
    """Listener that cancels revoked runs. An active run is cancelled only if the revoke command has `terminate`."""

    def __init__(self, store: AsyncStore, keys: Keys, app: Celery, clock: Clock = SYSTEM_CLOCK) -> None:
        self._store = store
        self._keys = keys
        self._app = app
        self._clock = clock
        self._consumer: BroadcastConsumer | None = None
        self._revoking: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Start listening, unless Celery's ``worker_enable_remote_control`` is off. Runs are cancelled on the running
        event loop."""
        if not self._app.conf.worker_enable_remote_control:
            return
        loop = asyncio.get_running_loop()
        self._consumer = BroadcastConsumer(self._app, lambda body: loop.call_soon_threadsafe(self.receive, body))
        self._consumer.start()

    async def stop(self) -> None:
        """Stop listening."""
        if self._consumer is not None:
            self._consumer.stop()
        for task in self._revoking:
            task.cancel()
        await asyncio.gather(*self._revoking, return_exceptions=True)

    def receive(self, broadcast: Any) -> None:
        """Cancel the runs that the remote-control command `broadcast` revokes."""
        revoke = Revoke.of(broadcast)
        if revoke is None:
            return
        refs = [ref for ref in map(RunRef.of, revoke.celery_ids) if ref is not None]
        if refs:
            self._keep(self._revoke_all(refs, revoke.terminate))
        if others := [celery_id for celery_id in revoke.celery_ids if RunRef.of(celery_id) is None]:
            self._keep(self._explain(others[:MAX_EXPLAINED]))

    def _keep(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work, name="a2a-revoke")
        self._revoking.add(task)
        task.add_done_callback(self._revoking.discard)

    async def _explain(self, celery_ids: Sequence[str]) -> None:
        """Log the run of each A2A task whose id an operator revoked instead of the Celery id of its run."""
        for task_id in celery_ids:
            try:
                steps = await self._store.run(read_activities(self._keys, task_id))
            except StoreUnavailable:
                return
            if steps is not None and not is_terminal(steps.state):
                text = "revoking %s has no effect, because it is the id of an A2A task: revoke %s, or use a2a cancel"
                logger.warning(text, task_id, RunRef(task_id, steps.run).name)

    async def _revoke_all(self, refs: list[RunRef], terminate: bool) -> None:
        running = [ref for ref in refs if await self._revoke(ref, terminate)]
        if running and terminate:
            await self._clock.sleep(TERMINATE_AFTER)
            for ref in running:
                await self._revoke(ref, terminate, stop_agent=True)

    async def _revoke(self, ref: RunRef, terminate: bool, *, stop_agent: bool = False) -> bool:
        """Cancel an unclaimed run. With `stop_agent`, also cancel a claimed run.

        Returns:
            True if a worker has the run and was not asked to cancel it.
        """
        try:
            head = read_task(self._keys, None, ref.task_id, history_length=0, artifacts=False, resolve_blobs=False)
            snapshot = await run_with_retry(self._store, head)
            if snapshot and is_terminal(snapshot[0].status.state):
                return False  # for example after CancelTask, which also revokes the run
            outcome = revoked_by("terminate" if terminate else "revoke")
            event = snapshot and final_event(outcome, ref.task_id, snapshot[0].context_id)
            if not event:
                return False
            reply = await run_with_retry(self._store, revoke_run(self._keys, ref, event=event, terminate=stop_agent))
        except Exception as e:
            logger.warning("could not cancel run %s, which an operator revoked: %s", ref.name, e)
            return False
        if isinstance(reply, Unchanged):
            return True
        log_fields = about(Action.RUN_ENDED_FROM_OUTSIDE, ref.name)
        logger.info("an operator revoked run %s: %s", ref.name, reply, extra=log_fields)
        return False


class BroadcastConsumer(ConsumerMixin):
    """Consumer of the remote-control commands for the workers of `app`, in a thread.

    The thread calls `receive` with the body of each command whose content type the app accepts.
    """

    def __init__(self, app: Celery, receive: Callable[[Any], object]) -> None:
        self._app = app
        self._receive = receive
        self._stopped = Event()
        self._name = f"a2a-watcher-{uuid4().hex[:8]}@{gethostname()}"
        self.connection: Connection

    def start(self) -> None:
        """Start consuming in a daemon thread."""
        Thread(target=self._consume_until_stopped, name="a2a-revokes", daemon=True).start()

    def stop(self) -> None:
        """Stop consuming. The call does not wait for the thread."""
        self.should_stop = True
        self._stopped.set()

    def get_consumers(self, Consumer: Any, channel: Any) -> list[Any]:
        """Return a consumer of the workers' mailbox."""
        node = self._app.control.mailbox(channel.connection.client).Node(self._name, channel=channel)
        return [node.Consumer(callbacks=[self._take], on_decode_error=node.on_decode_error)]

    def on_consume_ready(self, connection: Any, channel: Any, consumers: Any, **_: Any) -> None:
        """Log that the consumer has started. kombu calls this method."""
        logger.info("listening for revokes")

    def on_connection_error(self, exc: Exception, interval: float) -> None:
        """Log that the broker is unavailable. kombu reconnects after `interval` seconds."""
        logger.warning("revokes are not received while the broker is unavailable: %s", exc)

    @contextmanager
    def establish_connection(self) -> Iterator[Connection]:
        """Connect to the broker, and retry until the broker is available."""
        with self.connection.clone() as connection:  # type: ignore[no-untyped-call]
            connection.ensure_connection(self.on_connection_error, **RECONNECT_POLICY)
            yield connection

    def _take(self, body: Mapping[str, Any], message: Any) -> None:
        self._receive(body)

    def _consume_until_stopped(self) -> None:
        while not self.should_stop:
            try:
                guard(self._app)
                self.connection = self._app.connection_for_read()
                if not self.connection.supports_exchange_type("fanout"):  # type: ignore[no-untyped-call]
                    logger.warning(
                        "this broker has no broadcasts, so revokes are not received: cancel tasks with a2a cancel"
                    )
                    return
                self.run()  # type: ignore[no-untyped-call]
            except Exception as e:
                logger.warning("could not listen for revokes, retrying: %r", e)
                self._stopped.wait(RETRY_INTERVAL)
