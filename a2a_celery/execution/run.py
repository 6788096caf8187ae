"""Run of a task: claim, execution of the agent, settlement, and the outcomes of the agent's exceptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any
from uuid import uuid4

from a2a.utils.errors import (
    A2AError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
    InvalidAgentResponseError,
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
)
from celery.exceptions import MaxRetriesExceededError, Reject, Retry

from ..agents import Agent
from ..concurrency import loop_remedy
from ..current_run import CURRENT_RUN, CurrentRun
from ..dispatch import RunOptions
from ..errors import (
    A2ACeleryError,
    AuthRequired,
    BlobsUnavailable,
    EndRun,
    Failed,
    InputRequired,
    Rejected,
    SuspendRun,
)
from ..features.worker import CLAIM_SECTIONS, NEXT_ATTEMPTS, REPLAY_FEATURES, RUN_FEATURES
from ..integrations.celery import cause_of
from ..lifecycle import (
    Canceled,
    Completed,
    Delegated,
    Failure,
    Lost,
    Outcome,
    Paused,
    Refused,
    Rejection,
    Retried,
    Superseded,
    Suspended,
    as_left,
    final_event,
)
from ..lifecycle.outcomes import (
    AGENT_FAILED,
    AGENT_REFUSED,
    CANCELED_BY_AGENT,
    INVALID_RESPONSE,
    OUT_OF_REACH,
    OUT_OF_TIME,
    agent_message,
)
from ..lifecycle.references import RunRef
from ..lifecycle.states import AUTH_REQUIRED, INPUT_REQUIRED
from ..store import Operation
from ..store.client.connection import run_with_retry
from ..store.runs.commands import Claim, NotClaimed, OtherCodeVersion, RetryUnrecorded, claim_run
from ..telemetry.logs import about
from ..telemetry.names import Action
from .agents.adapters import Adapter, UnusableAdapter
from .agents.running_agent import CURRENT as RUNNING_AGENT
from .agents.running_agent import RunningAgent
from .code_versions import forward_run
from .events.activities import CURRENT_EXECUTION, Execution
from .events.observers import CeleryEventEmitter, begin_execution, restored_execution
from .events.queue import RunEventQueue
from .events.release import RunRelease
from .events.run_telemetry import observe_run, report_begin, report_end, report_problem
from .events.settlement import Settlement
from .limits import CeleryLimits, Limits, limits_of, out_of_time, time_left
from .open_run import OpenRun
from .plain_tasks.threaded_call import ThreadedCall
from .process.forced_stop import Stop, abandoned_runs
from .process.run_host import RunHost

logger = logging.getLogger(__name__)

REFUSALS = (
    InvalidParamsError,
    InvalidRequestError,
    UnsupportedOperationError,
    ContentTypeNotSupportedError,
    ExtensionSupportRequiredError,
)
"""A2A errors about the client's message, whose text is sent to the client. All other A2A errors are failures."""


async def run_agent(adapter: Adapter, run: OpenRun, events: RunEventQueue) -> Outcome:
    """Run the agent and return its outcome.

    A question or a wait of the `Turn` determines the outcome even if a framework or a task group caught its exception.

    Raises:
        EndRun: The agent ended its run with this exception, which takes precedence over a caught question or wait.
        BaseException: The agent failed without a question or wait, or while it was being stopped. An error of
            `OpenRun.fail` takes precedence over all others.
    """
    try:
        outcome = await adapter.run(run, events)
    except SuspendRun:
        return Completed() if events.ended else _requested_end(run, events) or Completed()
    except EndRun:
        raise
    except BaseException as error:
        requested_end = _requested_end(run, events) or _requested_by(error, run.claim)
        if requested_end is None or run.is_stopping:
            raise
        logger.info("run %s ends with its question or wait; its agent raised %r", run.claim.ref.name, error)
        return requested_end
    finally:
        if run.error is not None and not run.is_stopping:
            raise run.error  # even if the agent caught the error
    if isinstance(outcome, Completed | Delegated):
        return _requested_end(run, events) or outcome
    return outcome


def _requested_end(run: OpenRun, events: RunEventQueue) -> Outcome | None:
    """Return the outcome of a question or wait that a method of the `Turn` has begun, or None if there is neither."""
    question, pending = run.question, run.wait
    if question is not None:
        return outcome_of(InputRequired(parts=question.parts), run.claim)
    if pending is None or events.ended:
        return None
    return Suspended(pending.ends_at.isoformat() if pending.ends_at else "", pending.wait.signal)


def _requested_by(error: BaseException, claim: Claim) -> Outcome | None:
    """Return the outcome of the first `EndRun` in `error`, which may be an exception group, or None."""
    if isinstance(error, EndRun):
        return outcome_of(error, claim)
    if not isinstance(error, BaseExceptionGroup):
        return None
    outcomes = (_requested_by(member, claim) for member in error.exceptions)
    return next((outcome for outcome in outcomes if outcome is not None), None)


def outcome_of(end: EndRun, claim: Claim) -> Outcome:
    """Return the outcome that an agent requested by raising `end`."""
    message = None
    if end.parts:
        message = agent_message("", claim.task.id, claim.task.context_id)
        del message.parts[:]
        message.parts.extend(end.parts)
    match end:
        case InputRequired():
            return Paused(INPUT_REQUIRED, message)
        case AuthRequired():
            return Paused(AUTH_REQUIRED, message)
        case Rejected():
            return Rejection(message)
        case Failed():
            more = end.parts[1:] if str(end) else end.parts
            return Failure(str(end) or AGENT_FAILED, parts=tuple(more))
        case _:
            return Completed()


def refuse(error: A2AError, run: OpenRun, events: RunEventQueue) -> Paused | Rejection:
    """Return the outcome of an A2A error about the client's message.

    A first message is rejected. After a refused answer, the task stays interrupted and waits for another answer. If the
    refused message answers `Turn.ask`, the next message answers the same question, unless a framework has recorded its
    own progress, which may include the refused answer.
    """
    task, turn = run.claim.task, run.claim.turn
    message = agent_message(error.message, task.id, task.context_id)
    if turn.interrupted_state is None:
        return Rejection(message)
    if turn.ask_count and not events.ended:
        run.refuse_answer()
    return Paused(turn.interrupted_state, message)


CANCEL_SHARE = 0.5
"""Share of `cancel_grace` that an executor's ``cancel()`` may take. The rest is left for the agent's coroutine."""


class Run:
    """Run of a task, from claim to settlement, on the event loop of its worker process."""

    def __init__(
        self,
        host: RunHost,
        agent: Agent,
        ref: RunRef,
        limits: Limits,
        call: ThreadedCall | None = None,
        *,
        emitter: CeleryEventEmitter | None = None,
        retries: int = 0,
    ) -> None:
        self.ref = ref
        self.token = uuid4().hex
        self._host = host
        self._agent = agent
        self._limits = limits
        self._call, self._emitter = call, emitter
        self._retries = call.retries if call else retries
        self._retry_options: RunOptions | None = None
        self._clock, self._arrived_at = host.clock, host.clock.monotonic()
        self._stopped: Stop | None = None
        self._woken: asyncio.Future[None] | None = None
        self._open_run: OpenRun | None = None
        self._events: RunEventQueue | None = None
        self._claiming: Callable[..., Operation[Claim | NotClaimed]] | None = None
        self._has_begun = False
        self._execution: Execution
        self._current = CurrentRun(self.ref.name)
        self.may_be_elsewhere = agent.max_attempts > 1

    async def perform(self) -> Outcome | None:
        """Execute the run.

        Returns:
            The outcome, or None if this worker did not claim the run.
        """
        began = self._clock.monotonic()
        try:
            adapter = self._call or await self._host.adapter(self._agent)
        except Exception:
            adapter = UnusableAdapter(self._report("its agent cannot be loaded"))
        claim = None if self._stopped else await self._claim(adapter)
        if claim is None:
            loss = Lost() if self._stopped else None
            return report_end(loss, self.ref, self._agent.name, self._clock.monotonic() - began)
        report_begin(claim, self._agent.name)
        run, events = self._open_run, self._events = self._open(claim, adapter)
        runner = self._host.runner_id
        begin_execution(self._execution, self._agent, claim, events, runner=runner, emitter=self._emitter)
        with self._host.leases.renewing(self):
            try:
                agent, timer, wakeup = self._set_out(adapter, run, events)
                try:
                    await wakeup  # awaited here, because each additional frame stays in memory while the agent waits
                finally:
                    if timer:
                        timer.cancel()
                outcome = await self._outcome(agent, timer, adapter, run, events)
                if self._stopped is Stop.TERMINATED or isinstance(as_left(outcome, events.state), Canceled):
                    self._current.cancel_all()  # including work that the agent started while it was stopping
                for feature in run.features:
                    outcome = await feature.after_agent(outcome, events.state)
                if events.blob_error is None:
                    outcome = await self._settle(run, events, outcome) or outcome
                    self._cancel_work(as_left(outcome, events.state), run)
            except BlobsUnavailable as e:
                events.fail_unwritable(e)
            except Exception:  # the task must not stay WORKING after any error
                outcome = Failure(reference=self._report("it could not be settled"))
                await self._settle(run, events, outcome)
            if events.blob_error is not None:
                outcome = Failure(OUT_OF_REACH, reference=self._report("its parts cannot be stored", events.blob_error))
                await self._settle(run, events, outcome)
        run.close_features()
        return report_end(as_left(outcome, events.state), self.ref, self._agent.name, self._clock.monotonic() - began)

    def ask_to_cancel(self) -> None:
        self.stop(Stop.CANCEL)

    def ask_to_interrupt(self) -> None:
        self.stop(Stop.INTERRUPT)

    def message_arrived(self) -> None:
        if self._open_run is not None:
            self._open_run.message_arrived.set()

    def give_up(self) -> None:
        if not self.ended:
            self.stop(Stop.LOST)

    def mark_lost(self) -> None:
        """Stop the run as lost, and drop events that wait for the store."""
        self.stop(Stop.LOST)
        if self._events is not None:
            self._events.mark_lost()

    @property
    def grace(self) -> float:
        """Seconds that the agent may take to stop."""
        return self._agent.grace(self._host.settings)

    @property
    def claimed(self) -> bool:
        """True if this worker has claimed the run."""
        return self._events is not None

    @property
    def ended(self) -> bool:
        """True if the agent has sent a terminal state that can be written before the agent returns."""
        return self._events is not None and self._events.is_finished

    @property
    def out_of_time(self) -> bool:
        """True if the run has reached a limit. Thread-safe."""
        run = self._open_run
        return run is not None and time_left(self._limits, self._arrived_at, run.idle_clock) <= 0

    def stop(self, reason: Stop) -> None:
        """Stop the run. Only the first reason takes effect."""
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
            retries=self._retries,
            worker=self._emitter.worker if self._emitter else "",
            code_version=self._agent.version or "",
            sections=[make_section(host.keys) for make_section in self._agent.selected(CLAIM_SECTIONS)],
        )
        # the claim may have succeeded although its reply was lost
        reply = await run_with_retry(host.store, claim(resolve_blobs=False))
        if isinstance(reply, RetryUnrecorded) and call is not None:
            event = final_event(Retried(call.retries + 1, call.max_attempts, ""), self.ref.task_id, reply.context_id)
            reply = await run_with_retry(host.store, claim(retried=event, resolve_blobs=False))
        if isinstance(reply, OtherCodeVersion):
            if await forward_run(host, self._agent, self.ref, reply):
                return None
            reply = await run_with_retry(host.store, claim(claims_other_code_version=True, resolve_blobs=False))
        if not isinstance(reply, Claim):
            logger.info("run %s dropped: %s", self.ref.name, reply, extra=about(Action.RUN_DROPPED, self.ref.name))
            return None
        if not reply.snapshot.is_resolved:
            self._claiming = claim
        return reply

    def _open(self, claim: Claim, adapter: Adapter) -> tuple[OpenRun, RunEventQueue]:
        host, agent = self._host, self._agent
        run = OpenRun(
            host.store,
            host.keys,
            claim,
            host.settings,
            agent,
            clock=self._clock,
            tasks=None if self._call else host.tasks,
        )
        self._execution = restored_execution(claim)
        events = RunEventQueue(
            run,
            hold=agent.first_event_hold,
            message_allowed=not agent.delivers_messages,
            # another turn may follow the terminal event of an agent that messages reach
            ends_on_return=agent.saves_context_data or agent.serialize_context or agent.delivers_messages,
            on_end=self._execution.finish_in,
        )
        for app_feature in host.app_features:
            if feature := app_feature.open_run(run, events, self._execution):
                run.add_feature(feature)
        if not adapter.announces:
            events.announce_later()
        return run, events

    def _set_out(
        self, adapter: Adapter, run: OpenRun, events: RunEventQueue
    ) -> tuple[asyncio.Task[Outcome], asyncio.Task[None] | None, asyncio.Future[None]]:
        """Start the asyncio task of the agent and, if the run has a limit, a timer.

        Returns:
            The asyncio task of the agent, the asyncio task of the timer or None if the run has no limit, and a future
            that is resolved when the agent ends or must be stopped.
        """
        wakeup = self._woken = events.aborted.future()  # a single future for all reasons, to save memory
        agent = asyncio.create_task(self._run_safely(adapter, run, events), name=f"a2a-agent-{self.ref.name}")
        agent.add_done_callback(self._wake)
        if self._stopped:
            asyncio.get_running_loop().call_soon(self._wake)  # after the agent's first step
        if self._limits == Limits():
            return agent, None, wakeup  # no timer task for a run without a limit
        timer = asyncio.create_task(out_of_time(self._limits, self._arrived_at, run.idle_clock))
        timer.add_done_callback(self._wake)
        return agent, timer, wakeup

    def _wake(self, _: object = None) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    async def _outcome(
        self,
        agent: asyncio.Task[Outcome],
        timer: asyncio.Task[None] | None,
        adapter: Adapter,
        run: OpenRun,
        events: RunEventQueue,
    ) -> Outcome:
        """Return the outcome of the agent. If the agent has not ended, stop it first."""
        if agent.done():
            return agent.result()
        if timer and timer.done() and not events.aborted.is_set():
            self.stop(Stop.OUT_OF_TIME)
        stop = self._stopped or (Stop.STUCK if events.blob_error else Stop.LOST)
        extra = about(Action.RUN_STOPPED, self.ref.name, agent=self._agent.name, why=stop.value)
        logger.info("run %s is stopped: %s", self.ref.name, stop.value, extra=extra)
        return await self._stop_agent(agent, stop, adapter, run, events)

    async def _stop_agent(
        self, agent: asyncio.Task[Outcome], stop: Stop, adapter: Adapter, run: OpenRun, events: RunEventQueue
    ) -> Outcome:
        """Cancel the agent, and wait up to `cancel_grace` seconds until the agent has stopped. Then stop it by
        force, if possible."""
        grace = self.grace
        until = self._clock.monotonic() + grace
        run.stop()
        if stop is Stop.CANCEL:
            events.hold_end()
        else:
            events.close()  # frameworks report a cancellation that they did not expect as a canceled task
        if stop in (Stop.CANCEL, Stop.INTERRUPT, Stop.TERMINATED):
            self._current.cancel_all()
        if stop in (Stop.CANCEL, Stop.INTERRUPT):
            cancelling = asyncio.create_task(self._cancel_agent(adapter, run, events))
            await asyncio.wait({cancelling}, timeout=grace * CANCEL_SHARE)
            cancelling.cancel()
        agent.cancel()
        await asyncio.wait({agent}, timeout=until - self._clock.monotonic())
        if not agent.done():
            events.close()
            self._host.force(self.ref, stop)
            extra = about(Action.RUN_ABANDONED, self.ref.name, agent=self._agent.name)
            logger.error("run %s: its agent ignores the stop and is abandoned", self.ref.name, extra=extra)
            abandoned_runs.add(self.ref.name)
            agent.add_done_callback(lambda _: abandoned_runs.discard(self.ref.name))
        match stop:
            case Stop.CANCEL:
                return Canceled()  # even after a normal return, because agents swallow cancellations
            case Stop.LOST | Stop.STUCK | Stop.SHUTDOWN | Stop.ABORT | Stop.TERMINATED:
                return Lost()  # after ABORT or TERMINATED, the worker's main process writes the outcome
            case Stop.INTERRUPT:
                return Superseded()
            case Stop.OUT_OF_TIME:
                return _requested_end(run, events) or Failure(OUT_OF_TIME)

    async def _cancel_agent(self, adapter: Adapter, run: OpenRun, events: RunEventQueue) -> None:
        """Notify the agent of its cancellation, in a separate asyncio task that the agent may cancel."""
        try:
            if self._has_begun:
                await adapter.cancel(run, events)
        except BaseException:  # see _guarded
            logger.info("run %s: the cancel() of its agent failed", self.ref.name, exc_info=True)

    async def _run_safely(self, adapter: Adapter, run: OpenRun, events: RunEventQueue) -> Outcome:
        """Return the outcome of the agent. No exception of an agent may reach the event loop, which all runs share."""
        CURRENT_EXECUTION.set(self._execution)  # in the asyncio task of the agent
        self._current.trace = lambda: RunOptions.from_json(run.claim.options).trace
        CURRENT_RUN.set(self._current)
        agent = RunningAgent(run, events)
        try:
            await run.complete_claim(self._claiming)
            begin_agent(agent)
            self._has_begun = True
            await open_features(self._agent, run, events)
            for feature in run.features:
                await feature.before_agent()
            return await run_agent(adapter, run, events)
        except asyncio.CancelledError:
            return Canceled(CANCELED_BY_AGENT)
        except BaseException as error:  # including SystemExit and KeyboardInterrupt, which would stop the loop
            return self._next_attempt(error, agent) or self._ended_by(error, run, events)

    def _cancel_work(self, outcome: Outcome, run: OpenRun) -> None:
        """Cancel the started work if the run ended without a result, or if the turn's next run starts the work again.

        The work continues after an error of `OpenRun.fail`, because a resubmitted task continues to use it.
        """
        without_result = isinstance(outcome, Canceled | Failure | Rejection) and run.error is None
        if without_result or isinstance(outcome, Retried | Superseded):
            self._current.cancel_all(is_retried=isinstance(outcome, Retried))

    def _next_attempt(self, error: BaseException, agent: RunningAgent) -> Retried | None:
        """Return the retry that follows `error`, or None.

        A run whose agent has already ended the task is not retried. Errors of `OpenRun.fail`, and errors about the
        message or the object store, are not retried either.
        """
        if self._call is not None or agent.events.ended or error is agent.run.error:
            return None
        if isinstance(error, (*REFUSALS, BlobsUnavailable)):
            return None
        cause = error.__cause__ if isinstance(error, A2ACeleryError) and error.replaces_cause else None
        attempts = (next_attempt(agent, cause or error) for next_attempt in NEXT_ATTEMPTS)
        attempt = next((attempt for attempt in attempts if attempt is not None), None)
        if attempt is None:
            return None
        retry, self._retry_options = attempt
        extra = about(Action.RUN_RETRIED, self.ref.name, agent=self._agent.name, attempt=retry.attempt)
        logger.warning("run %s: attempt %d follows", self.ref.name, retry.attempt, exc_info=error, extra=extra)
        return retry

    def _ended_by(self, error: BaseException, run: OpenRun, events: RunEventQueue) -> Outcome:
        """Return the outcome of a run whose agent raised an exception."""
        if isinstance(error, Retry) and self._call is None:
            error = cause_of(error) or MaxRetriesExceededError("the run has reached its limit of retries")
        match error:
            case _ if error is run.error:
                reference = self._report("it cannot continue its turn", error)
                return Failure(reference=reference, is_resubmittable=True)
            case EndRun():
                return outcome_of(error, run.claim)
            case _ if isinstance(error, REFUSALS):
                logger.info("run %s: its agent refused the message: %.1000r", self.ref.name, str(error))
                return refuse(error, run, events)
            case BlobsUnavailable():
                return Failure(OUT_OF_REACH, reference=self._report("its input cannot be read", error))
            case InvalidAgentResponseError():
                return Failure(INVALID_RESPONSE, reference=self._report("its agent's response cannot be sent", error))
            case Reject():
                self._report("its agent raised Celery's Reject", error)
                return Refused(AGENT_REFUSED)
            case _:
                # Celery itself reports the exception of a plain task as an error
                level = logging.ERROR if self._call is None else logging.WARNING
                return Failure(reference=self._report(f"its agent failed{loop_remedy(error)}", error, level))

    def _report(self, problem: str, error: BaseException | None = None, level: int = logging.ERROR) -> str:
        """Log `error`, or the current exception, and return the reference in the log line."""
        return report_problem(self.ref, self._agent.name, problem, error, level=level)

    async def _settle(self, run: OpenRun, events: RunEventQueue, outcome: Outcome) -> Outcome | None:
        """Write the outcome of the run. Return the actual outcome if it differs from `outcome`, or None."""
        host, claim, publish = self._host, run.claim, self._host.runs.publish
        self._execution.finish(outcome, events.state)
        final = final_event(outcome, claim.task.id, claim.task.context_id)
        if final is not None and not isinstance(outcome, Retried | Suspended):
            for feature in run.features:
                final = await feature.last_status(final, outcome, events)
        match outcome:
            case Lost():
                await events.abandon()
            case Retried() if self._call is not None:
                await RunRelease(run, events, publish).retry_by_celery(final, self._call)
            case Retried() if self._retry_options is not None:
                return await RunRelease(run, events, publish).retry(final, self._retry_options)
            case Suspended():
                return await RunRelease(run, events, publish).suspend(final)
            case Delegated(canvas):
                await RunRelease(run, events, publish).delegate(final, canvas)
            case _:
                limit = self._agent.pause_limit(host.settings)
                is_resubmittable = isinstance(outcome, Failure) and outcome.is_resubmittable
                settlement = Settlement(
                    run, events.translator, publish, input_timeout=limit, is_resubmittable=is_resubmittable
                )
                return await events.settle(final, settlement.write)
        return None


def begin_agent(agent: RunningAgent) -> None:
    """Make the run available to the agent's code, whose asyncio task calls this function, and open the features that
    replay the journal of the turn."""
    RUNNING_AGENT.set(agent)
    if agent.run.claim.journal.entries:
        for kind in REPLAY_FEATURES:
            agent.feature(kind)


async def open_features(agent: Agent, run: OpenRun, events: RunEventQueue) -> None:
    """Open the features that the options of an agent turn on, and add them to the run."""
    for open_feature in agent.selected(RUN_FEATURES):
        run.add_feature(await open_feature(run, events))


def begin_run(
    host: RunHost,
    agent: Agent,
    ref: RunRef,
    celery: CeleryLimits,
    call: ThreadedCall | None = None,
    *,
    emitter: CeleryEventEmitter | None = None,
    retries: int = 0,
) -> tuple[Run, Coroutine[Any, Any, Outcome | None]]:
    """Return a new run, and the coroutine that performs the run on the event loop of `host`.

    Call this function in the thread of the Celery task; see `observe_run`.

    Args:
        host: Host of the run.
        agent: Agent to call.
        ref: Task and number of the run.
        celery: Celery's time limits for the run.
        call: Plain Celery task to call in a thread, or None for an agent.
        emitter: Emitter of Celery events, or None if the worker does not send events.
        retries: Number of earlier retries according to the Celery message.
    """
    limits = limits_of(agent, celery, agent.grace(host.settings))
    run = Run(host, agent, ref, limits, call, emitter=emitter, retries=retries)
    perform = run.perform if host.cleanup is None else host.cleanup.around(run.perform)
    return run, observe_run(perform, ref, agent.name)
