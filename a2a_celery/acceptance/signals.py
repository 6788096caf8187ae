"""Signals that operators and Celery tasks send to A2A tasks (`A2A.signal`), and the publication of the resumed runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from ..agents import Agent
from ..clock import SYSTEM_CLOCK
from ..dispatch import Publisher, RunOptions
from ..errors import BrokerUnavailable, SignalRefused
from ..lifecycle.signals import encode_payload, require_signal_id, require_signal_name
from ..lifecycle.states import short_name
from ..settings import Settings
from ..store import AsyncStore, Keys, Operation, SyncStore
from ..store.runs.publication import mark_published
from ..store.tasks.results import Ended, Full, Missing, TooLarge
from ..store.tasks.signals import MAX_STORED_SIGNALS, SentSignal, SignalResumed, SignalUnreceived, send_signal

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Signal:
    """Signal to a task.

    Attributes:
        task_id: Id of the task.
        name: Name of the signal.
        payload: Payload as encoded JSON.
        signal_id: Id of the signal. A second signal with the same id has no effect.
    """

    task_id: str
    name: str
    payload: bytes
    signal_id: str

    @classmethod
    def of(cls, task_id: str, name: str, payload: Any, signal_id: str | None) -> Signal:
        """Return a valid signal, with a new id if `signal_id` is None.

        Raises:
            ValueError: An argument is invalid. The message states the rule.
        """
        identity = str(uuid4()) if signal_id is None else require_signal_id(signal_id)
        return cls(task_id, require_signal_name(name), encode_payload(payload), identity)

    def operation(
        self, keys: Keys, max_bytes: int | None, agents_without_signals: Iterable[str]
    ) -> Operation[SentSignal]:
        """Return the operation that sends the signal to a task of any owner.

        Args:
            keys: Keys of the store.
            max_bytes: Maximum size of a task with its signals, or None for no limit.
            agents_without_signals: Agents that cannot receive signals. The store refuses signals to their tasks.
        """
        return send_signal(
            keys,
            None,
            self.task_id,
            name=self.name,
            payload=self.payload,
            signal_id=self.signal_id,
            max_bytes=max_bytes,
            agents_without_signals=agents_without_signals,
        )


class SignalSender:
    """Sender of signals to tasks of all owners, which also publishes the runs that the signals resume.

    Args:
        settings: Settings of the deployment.
        publisher: Function that returns the publisher of the resumed runs.
        agents: Agents of the app. Only function agents can receive signals.
    """

    def __init__(self, settings: Settings, publisher: Callable[[], Publisher], agents: Iterable[Agent]) -> None:
        self._settings = settings
        self._keys = Keys(settings.key_prefix)
        self._publisher = publisher
        self._without_signals = [agent.name for agent in agents if agent.kind != "function"]

    def send(self, signal: Signal) -> bool:
        """Send `signal`; see `A2A.signal`. The method does not use an event loop, because greenlets on gevent share the
        thread of the agents' loop, which cannot run a second loop."""
        store = SyncStore(self._settings.store_url, wait_replicas=self._settings.store_wait_replicas)
        try:
            resumption = _resumption(store.run(self._operation(signal)), signal)
            if resumption is not None and not resumption.is_blocked:
                try:
                    self._publisher().publish(resumption.agent, signal.task_id, resumption.ref.run, resumption.options)
                except BrokerUnavailable as e:
                    logger.warning("run %s: a watcher publishes it: %s", resumption.ref.name, e)
                else:
                    store.run(mark_published(self._keys, resumption.ref, delay_us=self._delay_us(resumption)))
            return resumption is not None
        finally:
            store.close()

    async def send_async(self, signal: Signal) -> bool:
        """Send `signal` without blocking the event loop; see `A2A.signal`."""
        store = AsyncStore(self._settings.store_url, wait_replicas=self._settings.store_wait_replicas)
        try:
            resumption = _resumption(await store.run(self._operation(signal)), signal)
            if resumption is not None and not resumption.is_blocked:
                try:
                    await self._publisher().publish_async(
                        resumption.agent, signal.task_id, resumption.ref.run, resumption.options
                    )
                except BrokerUnavailable as e:
                    logger.warning("run %s: a watcher publishes it: %s", resumption.ref.name, e)
                else:
                    await store.run(mark_published(self._keys, resumption.ref, delay_us=self._delay_us(resumption)))
            return resumption is not None
        finally:
            await store.aclose()

    def _operation(self, signal: Signal) -> Operation[SentSignal]:
        return signal.operation(self._keys, self._settings.task_max_bytes, self._without_signals)

    def _delay_us(self, resumption: SignalResumed) -> int:
        """Return the delay in µs after which a watcher publishes the run again if no worker has claimed it."""
        return RunOptions.from_json(resumption.options).republish_in(SYSTEM_CLOCK.now(), self._settings)


def _resumption(result: SentSignal, signal: Signal) -> SignalResumed | None:
    """Return the result for a signal that has resumed a run, or None if the signal was stored.

    Raises:
        SignalRefused: The signal was not accepted.
    """
    match result:
        case SignalResumed():
            return result
        case Missing():
            raise SignalRefused(f"no task {signal.task_id}: its id is wrong, or a2a_retention has passed")
        case SignalUnreceived(agent):
            raise SignalRefused(
                f"task {signal.task_id}: its agent {agent!r} receives no signals: only agents that are functions do"
            )
        case Ended(state):
            raise SignalRefused(f"task {signal.task_id} is {short_name(state)}: it has ended and receives no signals")
        case Full():
            raise SignalRefused(
                f"task {signal.task_id} has {MAX_STORED_SIGNALS} signals that no run has received: send this signal "
                "when its agent has received some"
            )
        case TooLarge():
            raise SignalRefused(f"task {signal.task_id} would be larger than a2a_task_max_bytes with this signal")
        case _:
            return None
