"""A run, as a column of steps: claim it, let the agent work, settle how it ended."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Any, Protocol
from uuid import uuid4

from ..agents import Agent
from ..config import Settings
from ..dispatch import Publisher
from ..errors import AgentSignal, AuthRequired, InputRequired
from ..errors import Failed as AgentFailed
from ..errors import Rejected as AgentRejected
from ..lifecycle import Canceled, Completed, Failed, Lost, Outcome, Paused, Rejected, final_event
from ..lifecycle.outcomes import agent_message
from ..lifecycle.states import AUTH_REQUIRED, INPUT_REQUIRED
from ..store import AsyncStore, Keys
from ..store.runs import Claim, Dropped, RunRef, claim_run
from .adapters import Adapter
from .events import RunEvents
from .leases import LeaseKeeper

logger = logging.getLogger(__name__)


class Host(Protocol):
    """What a run needs of the worker process it is in."""

    settings: Settings
    keys: Keys
    store: AsyncStore
    publisher: Publisher
    leases: LeaseKeeper
    runner_id: str

    async def adapter(self, agent: Agent) -> Adapter:
        """The agent's code, ready to be called."""
        ...


class Stop(Enum):
    """Why a run is stopped from outside."""

    CANCEL = "a client asked for it"
    LOST = "it was given to another worker"
    ABORT = "its Celery task was ended"


class Run:
    """One run of a task, from claim to settlement. Lives on the loop of its worker process."""

    def __init__(self, host: Host, agent: Agent, task_id: str, run: int) -> None:
        self.ref = RunRef(task_id, run)
        self.token = uuid4().hex
        self._host = host
        self._agent = agent
        self._stopped: asyncio.Future[Stop]

    async def perform(self) -> None:
        """The whole run."""
        self._stopped = asyncio.get_running_loop().create_future()
        try:
            adapter = await self._host.adapter(self._agent)
        except Exception:
            adapter = _Unusable(self._report("its agent can't be loaded"))
        claim = await self._claim(adapter)
        if claim is None:
            return
        events = self._open_log(claim, adapter)
        with self._host.leases.holding(self):
            outcome = await self._work(adapter, claim, events)
            await self._settle(claim, events, outcome)

    def ask_to_cancel(self) -> None:
        """See `leases.Held`."""
        self._stop(Stop.CANCEL)

    def give_up(self) -> None:
        """See `leases.Held`."""
        self._stop(Stop.LOST)

    def abort(self) -> None:
        """The Celery task ends, so the run does."""
        self._stop(Stop.ABORT)

    async def _claim(self, adapter: Adapter) -> Claim | None:
        host = self._host
        answer = await host.store.run(
            claim_run(
                host.keys,
                self.ref,
                token=self.token,
                runner=host.runner_id,
                lease_us=host.leases.lease_us,
                working=adapter.announces,
            )
        )
        if isinstance(answer, Dropped):
            logger.info("run %s dropped: %s", self.ref.name, answer.reason)
            return None
        return answer

    def _open_log(self, claim: Claim, adapter: Adapter) -> RunEvents:
        async def publish_next(run: int) -> None:
            try:
                await self._host.publisher.publish_async(self._agent.name, self.ref.task_id, run)
            except Exception as e:
                logger.warning("run %s.%s will be published by the watcher: %s", self.ref.task_id, run, e)

        host = self._host
        events = RunEvents(
            host.store,
            host.keys,
            claim,
            hold=host.settings.first_event_hold,
            input_timeout=host.settings.input_timeout,
            publish_next=publish_next,
        )
        if not adapter.announces:
            events.announce_later()
        return events

    async def _work(self, adapter: Adapter, claim: Claim, events: RunEvents) -> Outcome:
        """Runs the agent until it ends, or until it must."""
        agent = asyncio.create_task(self._guarded(adapter, claim, events), name=f"a2a-agent-{self.ref.name}")
        lost = asyncio.create_task(events.lost.wait())
        try:
            ends: set[asyncio.Future[Any]] = {agent, lost, self._stopped}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            lost.cancel()
        if agent.done():
            return agent.result()
        stop = self._stopped.result() if self._stopped.done() else Stop.LOST
        logger.info("run %s is stopped: %s", self.ref.name, stop.value)
        return await self._stop_agent(agent, stop, adapter, claim, events)

    async def _stop_agent(
        self, agent: asyncio.Task[Outcome], stop: Stop, adapter: Adapter, claim: Claim, events: RunEvents
    ) -> Outcome:
        grace = self._host.settings.cancel_grace
        if stop is Stop.CANCEL:
            events.hold_end()
            try:
                async with asyncio.timeout(grace):
                    await adapter.cancel(claim, events)
            except Exception:
                logger.info("run %s: its agent's own cancel() failed", self.ref.name, exc_info=True)
        else:
            events.close()  # frameworks report a cancellation they did not expect as a canceled task
        agent.cancel()
        await asyncio.wait({agent}, timeout=grace)
        if not agent.done():
            events.close()
            logger.error("run %s: its agent ignores that it was cancelled, and is left behind", self.ref.name)
        match stop:
            case Stop.CANCEL:
                return Canceled()  # a normal return says nothing: agents swallow cancellations
            case Stop.LOST:
                return Lost()
            case Stop.ABORT:
                return Failed()

    async def _guarded(self, adapter: Adapter, claim: Claim, events: RunEvents) -> Outcome:
        """How the agent ended. Nothing an agent raises gets past here: the loop belongs to all runs."""
        try:
            return await adapter.run(claim, events)
        except asyncio.CancelledError:
            return Canceled()
        except AgentSignal as signal:
            return outcome_of(signal, claim)
        except BaseException:  # also SystemExit and KeyboardInterrupt, which would stop the loop
            return Failed(reference=self._report("its agent failed"))

    def _report(self, what: str) -> str:
        """Logs the exception at hand and returns the reference that finds it there."""
        reference = uuid4().hex[:12]
        logger.exception("run %s: %s [reference %s]", self.ref.name, what, reference)
        return reference

    async def _settle(self, claim: Claim, events: RunEvents, outcome: Outcome) -> None:
        if isinstance(outcome, Lost):
            await events.abandon()
            return
        await events.settle(final_event(outcome, claim.task.id, claim.task.context_id))

    def _stop(self, reason: Stop) -> None:
        if not self._stopped.done():
            self._stopped.set_result(reason)


class _Unusable:
    """Stands for an agent whose code can't be loaded: every run of it fails, with a reference to the reason."""

    announces = False

    def __init__(self, reference: str) -> None:
        self._reference = reference

    async def run(self, claim: Claim, events: RunEvents) -> Outcome:
        return Failed(reference=self._reference)

    async def cancel(self, claim: Claim, events: RunEvents) -> None:
        return


def outcome_of(signal: AgentSignal, claim: Claim) -> Outcome:
    """The outcome an agent asked for by raising `signal`."""
    message = None
    if signal.parts:
        message = agent_message("", claim.task.id, claim.task.context_id)
        del message.parts[:]
        message.parts.extend(signal.parts)
    match signal:
        case InputRequired():
            return Paused(INPUT_REQUIRED, message)
        case AuthRequired():
            return Paused(AUTH_REQUIRED, message)
        case AgentRejected():
            return Rejected(message)
        case AgentFailed():
            return Failed(str(signal))
        case _:
            return Completed()
