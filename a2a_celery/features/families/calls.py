"""Calls to other agents by a function agent: `Turn.call`.

A call starts a child of the agent's task, and returns the child's result. The id of the child is derived from the key
of the call in the journal, so that each run of the turn finds the same child. The journal records the id of the child
first, and then its result.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, NoReturn

from a2a.utils.errors import A2AError

from ...caller import Caller
from ...client.calling.content import result_data
from ...client.result import Result
from ...errors import ChildFailed, ChildInterrupted, ChildRefused, SuspendRun
from ...execution.agents.running_agent import RunningAgent
from ...execution.open_run import PendingWait
from ...lifecycle import is_interrupted
from ...lifecycle.journal import JournalEntry
from ...lifecycle.states import COMPLETED
from ...store.runs.suspension import Wait
from ..steps.durable_steps import defer_failure, replay
from ..steps.journal import UNFINISHED, JournalCall, RunJournal
from ..steps.step_results import FAILURE
from .agent_calls import AgentCalls, ChildCall, name_of

KIND = "call"
"""Kind of the journal entries of calls."""

CHILD_SIGNAL = "child/"
"""Prefix of the name of the signal with which a child resumes the run of its parent. The id of the child follows."""

SHORT_CALL = 0.3
"""Seconds for which a run waits for a child before the run is suspended and frees its slot."""

MAX_WAIT = 3600.0
"""Seconds after which a suspended run checks its child, in case the store has lost the child."""

STARTED, RESULT, REFUSED = "started", "json", "refused"
"""Forms of the journal entries of calls: the id of the child, its result, and the error text of a refusal."""


@dataclass(frozen=True, slots=True)
class BegunCall:
    """Valid call to `Turn.call`."""

    journal: RunJournal
    calls: AgentCalls
    entry: JournalCall
    call: ChildCall

    async def result(self) -> Result:
        """Return the recorded result, or the result of the child.

        Raises:
            SuspendRun: The run is suspended until the child, a task of an agent of this app, has ended or waits for its
                client.
            ChildFailed: The child ended in a state other than COMPLETED.
            ChildInterrupted: The child waits for its client.
            ChildRefused: The agent refused the message, so there is no child.
            Exception: The recorded or current error of a call to a remote agent, for example a ``client.RemoteError``.
            StepError: The result is too large for the journal.
        """
        journal, entry, call = self.journal, self.entry, self.call
        journal_entry = entry.entry
        if journal_entry is not None and journal_entry.form == REFUSED:
            raise ChildRefused(journal_entry.content.decode(), call.agent)
        if journal_entry is not None and journal_entry.form == FAILURE:
            replayed: Result = replay(journal, entry, journal_entry)
            return replayed
        if journal_entry is not None and journal_entry.form == RESULT:
            return _require_completed(call, Result.from_dict(json.loads(journal_entry.content)))
        try:
            with journal.run.idle_clock:
                with journal.in_progress(entry):  # all calls in an asyncio.gather start their children
                    task_id, result = await self._start_child()
                if result is None and call.is_remote:
                    result = await self.calls.result(call, task_id)
            if result is None:
                result = await self._short_call_result(task_id)
            if result is None:
                await self._suspend()
        except A2AError as e:
            text = f"agent {call.agent} refused the call: {type(e).__name__}: {e.message}"
            journal.defer(entry, REFUSED, text.encode())
            raise ChildRefused(text, call.agent) from e
        except SuspendRun:
            raise
        except BaseException as error:
            if call.is_remote and isinstance(error, Exception):
                defer_failure(journal, entry, error)
            elif not journal.has_entry(entry):  # otherwise, the next run finds the child by its recorded id
                journal.defer(entry, UNFINISHED, b"")
            raise
        content = json.dumps(result_data(result), ensure_ascii=False, separators=(",", ":"))
        await journal.record(entry, RESULT, content.encode())
        return _require_completed(call, result)

    async def _start_child(self) -> tuple[str, Result | None]:
        """Start the child, unless an earlier run has started it.

        Returns:
            The id of the child, and its result. The result is None if an earlier run has started the child, or if a new
            child is neither terminal nor interrupted.
        """
        if self.entry.entry is not None:
            return self.entry.entry.content.decode(), None
        result = await self.calls.start(self.call)
        if result.task_id:
            await self.journal.record(self.entry, STARTED, result.task_id.encode())
        return result.task_id, None if result.stop_reason is None else result

    async def _short_call_result(self, task_id: str) -> Result | None:
        """Return the result of a child of the app, or None if the child takes longer than `SHORT_CALL`."""
        try:
            async with asyncio.timeout(SHORT_CALL):
                return await self.calls.result(self.call, task_id)
        except TimeoutError:
            return None

    async def _suspend(self) -> NoReturn:
        """Suspend the run until the child has ended or waits for its client; see `RunJournal.suspend`."""
        entry, child_id = self.entry, self.call.key
        start_entry = JournalEntry(entry.key, entry.kind, STARTED, child_id.encode(), entry.position)
        deadline = self.journal.run.clock.monotonic() + MAX_WAIT
        wait = Wait(start_entry, start_entry, f"{CHILD_SIGNAL}{child_id}", task_id=child_id)
        await self.journal.suspend(PendingWait(wait, deadline, None))


def begin_call(agent: RunningAgent, target: Any, message: Any, context_id: str | None, tenant: str | None) -> BegunCall:
    """Check the arguments of `Turn.call`, and begin its journal call. Thread-safe.

    Raises:
        ConfigError: The run executes a plain Celery task, or `target` or `tenant` is invalid.
    """
    calls, journal, claim = agent.feature(AgentCalls), agent.feature(RunJournal), agent.run.claim
    context_id, tenant = context_id or "", tenant or ""
    arguments = (message, context_id, tenant) if tenant else (message, context_id)
    entry = journal.begin(KIND, name_of(target, tenant), arguments)
    caller = Caller.from_json(claim.turn.caller)
    child = ChildCall(target, message, context_id, entry.idempotency_key, caller, claim.task.id, tenant)
    return BegunCall(journal, calls, entry, child)


def _require_completed(call: ChildCall, result: Result) -> Result:
    if result.state in (COMPLETED, None):  # None: a message without a task
        return result
    text = f"child task {result.task_id} of agent {call.agent} is {result.state_name}"
    fields = (call.agent, result.task_id, result.state_name, result)
    if is_interrupted(result.state):  # type: ignore[arg-type]
        raise ChildInterrupted(f"{text}: answer it with SendMessage to that task", *fields)
    raise ChildFailed(text, *fields)
