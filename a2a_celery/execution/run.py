"""A run, as a column of steps: claim it, let the agent work, settle how it ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from uuid import uuid4

from celery.exceptions import Reject

from ..agents import Agent
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import AgentSignal, BlobsUnavailable
from ..lifecycle import Canceled, Failed, HandedOn, Lost, Outcome, Refused, Retried, as_left, final_event
from ..lifecycle.outcomes import AGENT_REFUSED, OUT_OF_REACH, OUT_OF_TIME
from ..store import Operation
from ..store.connection import patiently
from ..store.runs import Behind, Claim, Dropped, RunRef, claim_run
from ..telemetry.logs import about
from ..telemetry.names import Action
from .adapters import Adapter, Unusable
from .calls import ThreadedCall, handed_on, retried
from .events import RunEvents
from .force import Stop, left_behind
from .host import Host
from .limits import Limits, TimedEvents, out_of_time, time_left
from .observing import begun, ended, reported
from .raised import outcome_of
from .refusals import REFUSALS, refused
from .session import open_session
from .settlement import publishing
from .showing import Tell, begin_execution
from .steps import CURRENT_EXECUTION, Execution

logger = logging.getLogger(__name__)

TELLING_SHARE = 0.5
"""An executor's own ``cancel()`` may take this share of `cancel_grace`; the rest is for what it was to cancel."""


class Run:
    """One run of a task, from claim to settlement. Lives on the loop of its worker process."""

    def __init__(
        self,
        host: Host,
        agent: Agent,
        task_id: str,
        run: int,
        limits: Limits,
        call: ThreadedCall | None = None,
        *,
        tell: Tell | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.ref = RunRef(task_id, run)
        self.token = uuid4().hex
        self._host = host
        self._agent = agent
        self._limits = limits
        self._call, self._tell_celery = call, tell
        self._clock, self._arrived_at = clock, clock.monotonic()
        self._stopped: Stop | None = None
        self._woken: asyncio.Future[None] | None = None
        self._events: TimedEvents | None = None
        self._claiming: Callable[..., Operation[Claim | Dropped | Behind]] | None = None
        self._shown: Claim | None = None
        self._execution: Execution
        self.may_be_elsewhere = agent.max_attempts > 1

    async def perform(self) -> Outcome | None:
        """The whole run, and how it ended; None if it was not ours to begin."""
        began = self._clock.monotonic()
        try:
            adapter = self._call or await self._host.adapter(self._agent)
        except Exception:
            adapter = Unusable(self._report("its agent can't be loaded"))
        claim = None if self._stopped else await self._claim(adapter)
        if claim is None:
            return ended(Lost() if self._stopped else None, self.ref, self._agent.name, self._clock.monotonic() - began)
        begun(claim, self._agent.name)
        self._events = events = self._open_log(claim, adapter)
        runner = self._host.runner_id
        self._execution = begin_execution(self._agent, claim, events, runner=runner, tell=self._tell_celery)
        with self._host.leases.holding(self):
            try:
                agent, late, woken = self._set_out(adapter, claim, events)
                try:
                    await woken  # here, for what this awaits has a frame of its own as long as an agent waits
                finally:
                    if late:
                        late.cancel()
                outcome = await self._outcome(agent, late, adapter, claim, events)
                if events.stuck is None:
                    outcome = await self._settle(claim, events, outcome) or outcome
            except BlobsUnavailable as e:
                events.get_stuck(e)
            except Exception:  # whatever it is, its task must not stay WORKING
                outcome = Failed(reference=self._report("it could not be settled"))
                await self._settle(claim, events, outcome)
            if events.stuck is not None:
                outcome = Failed(OUT_OF_REACH, reference=self._report("its parts can't be kept", events.stuck))
                await self._settle(claim, events, outcome)
        return ended(as_left(outcome, events.state), self.ref, self._agent.name, self._clock.monotonic() - began)

    def ask_to_cancel(self) -> None:
        """See `leases.Held`."""
        self.stop(Stop.CANCEL)

    def give_up(self) -> None:
        """See `leases.Held`. An agent that has ended its task may still tidy up: there is nothing left to lose."""
        if not self.ended:
            self.stop(Stop.LOST)

    @property
    def claimed(self) -> bool:
        """Whether the run has been ours."""
        return self._events is not None

    @property
    def ended(self) -> bool:
        """Whether its agent has said the task's last word, and that does not wait for it to return."""
        return self._events is not None and self._events.over

    @property
    def out_of_time(self) -> bool:
        """Whether one of its limits is reached. May be asked in any thread."""
        return self._events is not None and time_left(self._limits, self._arrived_at, self._events) <= 0

    def stop(self, reason: Stop) -> None:
        """Ends the run; the first reason counts."""
        if self._stopped is None:
            self._stopped = reason
            self._wake()

    async def _claim(self, adapter: Adapter) -> Claim | None:
        host, call = self._host, self._call
        claim = partial(
            claim_run,
            host.keys,
            self.ref,
            token=self.token,
            runner=host.runner_id,
            lease_us=host.leases.lease_us,
            working=adapter.announces,
            max_attempts=self._agent.max_attempts,
            retries=call.retries if call else 0,
            session=self._agent.session,
            worker=self._tell_celery.worker if self._tell_celery else "",
        )
        # a claim whose answer was lost may have been carried out
        answer = await patiently(host.store, claim(whole=False))
        if isinstance(answer, Behind) and call is not None:
            event = final_event(Retried(call.retries + 1, call.max_attempts, ""), self.ref.task_id, answer.context_id)
            answer = await patiently(host.store, claim(retried=event, whole=False))
        if isinstance(answer, Dropped | Behind):
            logger.info("run %s dropped: %s", self.ref.name, answer, extra=about(Action.RUN_DROPPED, self.ref.name))
            return None
        if not answer.whole:
            self._claiming = claim
        return answer

    def _open_log(self, claim: Claim, adapter: Adapter) -> TimedEvents:
        host = self._host
        events = TimedEvents(
            host.store,
            host.keys,
            claim,
            hold=host.settings.first_event_hold,
            input_timeout=host.settings.input_timeout,
            publish_next=publishing(host.publisher, self._agent.name),
            end_held=self._agent.session or self._agent.one_by_one,
            clock=self._clock,
        )
        if not adapter.announces:
            events.announce_later()
        return events

    def _set_out(
        self, adapter: Adapter, claim: Claim, events: TimedEvents
    ) -> tuple[asyncio.Task[Outcome], asyncio.Task[None] | None, asyncio.Future[None]]:
        """Begins the agent, and what is done when its time is over, if that is limited; the last is done when the agent
        has ended, or must."""
        woken = self._woken = events.over_early.raised()  # one for whatever it is: each takes its place for as long
        agent = asyncio.create_task(self._guarded(adapter, claim, events), name=f"a2a-agent-{self.ref.name}")
        agent.add_done_callback(self._wake)
        if self._stopped:
            asyncio.get_running_loop().call_soon(self._wake)  # behind the agent's first step, as if it came then
        if self._limits == Limits():
            return agent, None, woken  # a task less for each that waits without a limit
        late = asyncio.create_task(out_of_time(self._limits, self._arrived_at, events))
        late.add_done_callback(self._wake)
        return agent, late, woken

    def _wake(self, _: object = None) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _outcome(
        self,
        agent: asyncio.Task[Outcome],
        late: asyncio.Task[None] | None,
        adapter: Adapter,
        claim: Claim,
        events: TimedEvents,
    ) -> Outcome:
        """How the agent has ended, or is ended."""
        if agent.done():
            return agent.result()
        if late and late.done() and not events.over_early.is_set():
            self.stop(Stop.OUT_OF_TIME)
        stop = self._stopped or (Stop.STUCK if events.stuck else Stop.LOST)
        said = about(Action.RUN_STOPPED, self.ref.name, agent=self._agent.name, why=stop.value)
        logger.info("run %s is stopped: %s", self.ref.name, stop.value, extra=said)
        return await self._stop_agent(agent, stop, adapter, claim, events)

    async def _stop_agent(
        self, agent: asyncio.Task[Outcome], stop: Stop, adapter: Adapter, claim: Claim, events: RunEvents
    ) -> Outcome:
        """Asks the agent to stop, and waits for it `cancel_grace` in all; then comes force, where there is any."""
        grace = self._host.settings.cancel_grace
        until = self._clock.monotonic() + grace
        events.stopping = True
        if stop is Stop.CANCEL:
            events.hold_end()
            telling = asyncio.create_task(self._tell(adapter, events))
            await asyncio.wait({telling}, timeout=grace * TELLING_SHARE)
            telling.cancel()
        else:
            events.close()  # frameworks report a cancellation they did not expect as a canceled task
        agent.cancel()
        await asyncio.wait({agent}, timeout=until - self._clock.monotonic())
        if not agent.done():
            events.close()
            self._host.force(self.ref, stop)
            said = about(Action.RUN_LEFT_BEHIND, self.ref.name, agent=self._agent.name)
            logger.error("run %s: its agent ignores that it was stopped, and is left behind", self.ref.name, extra=said)
            left_behind.add(self.ref.name)
            agent.add_done_callback(lambda _: left_behind.discard(self.ref.name))
        match stop:
            case Stop.CANCEL:
                return Canceled()  # a normal return says nothing: agents swallow cancellations
            case Stop.LOST | Stop.STUCK | Stop.LEAVING | Stop.ABORT:
                return Lost()  # aborted: what that means to its task is for the worker's main process to say
            case Stop.OUT_OF_TIME:
                return Failed(OUT_OF_TIME)

    async def _tell(self, adapter: Adapter, events: RunEvents) -> None:
        """Lets the agent hear of its cancellation; in a task of its own, for it may cancel whoever calls it."""
        try:
            if self._shown is not None:  # else the agent has not begun
                await adapter.cancel(self._shown, events)
        except BaseException:  # as in _guarded
            logger.info("run %s: its agent's own cancel() failed", self.ref.name, exc_info=True)

    async def _guarded(self, adapter: Adapter, claim: Claim, events: RunEvents) -> Outcome:
        """How the agent ended. Nothing an agent raises gets past here: the loop belongs to all runs."""
        CURRENT_EXECUTION.set(self._execution)  # in the agent's own task
        try:
            if self._claiming is not None:
                claim = await events.store.in_full(claim, self._claiming)
            self._shown = claim
            open_session(self._agent, claim, events, self._host.settings)
            return await adapter.run(claim, events)
        except asyncio.CancelledError:
            return Canceled()
        except AgentSignal as signal:
            return outcome_of(signal, claim)
        except REFUSALS as error:
            logger.info("run %s: its agent refused the message: %s", self.ref.name, error)
            return refused(error, claim)
        except BlobsUnavailable:
            return Failed(OUT_OF_REACH, reference=self._report("what it was given can't be read"))
        except Reject:
            self._report("its agent raised Celery's Reject")
            return Refused(AGENT_REFUSED)
        except BaseException:  # also SystemExit and KeyboardInterrupt, which would stop the loop
            return Failed(reference=self._report("its agent failed"))

    def _report(self, what: str, error: Exception | None = None) -> str:
        """Logs the exception, None for the one at hand, and returns the reference that finds it there."""
        return reported(self.ref, self._agent.name, what, error)

    async def _settle(self, claim: Claim, events: TimedEvents, outcome: Outcome) -> Failed | None:
        """Writes the end; gives what it came to instead, if its session could not be saved."""
        self._execution.finish(outcome, events.state)
        final = final_event(outcome, claim.task.id, claim.task.context_id)
        match outcome:
            case Lost():
                await events.abandon()
            case Retried() if self._call is not None:
                await events.release(final, retried(self._host.keys, claim, self._call, self._host.settings))
            case HandedOn(canvas):
                await events.release(final, handed_on(self._host.keys, claim, canvas))
            case _:
                return await events.settle(final)
        return None
