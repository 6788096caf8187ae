"""Calls to other agents by a function agent: `Turn.call`.

A call starts a child of the agent's task, and returns the child's result. The id of the child is derived from the key
of the call in the journal, so that each run of the turn finds the same child. The journal records the id of the child
first, and then its result.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, NoReturn

from a2a.utils.errors import A2AError

from ...errors import ChildFailed, ChildInterrupted, ChildRefused, SuspendRun
from ...features.steps.durable_steps import defer_failure, replay
from ...features.steps.journal import UNFINISHED, JournalCall, RunJournal
from ...features.steps.step_results import FAILURE
from ...lifecycle import is_interrupted
from ...lifecycle.journal import JournalEntry
from ...lifecycle.signals import CHILD_SIGNAL
from ...lifecycle.states import COMPLETED
from ...store.runs.suspension import Wait
from ..agent_caller import AgentCaller, CallResult, ChildCall
from ..open_run import PendingWait

KIND = "call"
"""Kind of the journal entries of calls."""

SHORT_CALL = 0.3
"""Seconds for which a run waits for a child before the run is suspended and frees its slot."""

MAX_WAIT = 3600.0
"""Seconds after which a suspended run checks its child, in case the store has lost the child."""

STARTED, RESULT, REFUSED = "started", "json", "refused"
"""Forms of the journal entries of calls: the id of the child, its result, and the error text of a refusal."""


async def perform_call(journal: RunJournal, entry: JournalCall, call: ChildCall) -> Any:
    """Return the result of a call: the recorded result, or the result of the child.

    Raises:
        SuspendRun: The run is suspended until the child, a task of an agent of this app, has ended or waits for its
            client.
        ChildFailed: The child ended in a state other than COMPLETED.
        ChildInterrupted: The child waits for its client.
        ChildRefused: The agent refused the message, so there is no child.
        Exception: The recorded or current error of a call to a remote agent, for example a ``client.RemoteError``.
        StepError: The result is too large for the journal.
    """
    journal_entry, caller = entry.entry, journal.run.calls
    assert caller is not None
    if journal_entry is not None and journal_entry.form == REFUSED:
        raise ChildRefused(journal_entry.content.decode(), call.agent)
    if journal_entry is not None and journal_entry.form == FAILURE:
        return replay(journal, entry, journal_entry)
    if journal_entry is not None and journal_entry.form == RESULT:
        return _require_completed(call, caller.decode(json.loads(journal_entry.content)))
    try:
        with journal.run.idle_clock:
            with journal.in_progress(entry):  # all calls in an asyncio.gather start their children
                task_id, result = await _start_child(caller, journal, entry, call)
            if result is None and call.is_remote:
                result = await caller.result(call, task_id)
        if result is None:
            result = await _short_call_result(caller, call, task_id)
        if result is None:
            await _suspend(journal, entry, call)
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
    content = json.dumps(caller.encode(result), ensure_ascii=False, separators=(",", ":"))
    await journal.record(entry, RESULT, content.encode())
    return _require_completed(call, result)


async def _start_child(
    caller: AgentCaller, journal: RunJournal, entry: JournalCall, call: ChildCall
) -> tuple[str, CallResult | None]:
    """Start the child, unless an earlier run has started it.

    Returns:
        The id of the child, and its result. The result is None if an earlier run has started the child, or if a new
        child is neither terminal nor interrupted.
    """
    if entry.entry is not None:
        task_id, result = entry.entry.content.decode(), None
    else:
        result = await caller.start(call)
        task_id = result.task_id
        if task_id:
            await journal.record(entry, STARTED, task_id.encode())
        if result.stop_reason is None:
            result = None
    return task_id, result


async def _short_call_result(caller: AgentCaller, call: ChildCall, task_id: str) -> CallResult | None:
    """Return the result of a child of the app, or None if the child takes longer than `SHORT_CALL`."""
    try:
        async with asyncio.timeout(SHORT_CALL):
            return await caller.result(call, task_id)
    except TimeoutError:
        return None


async def _suspend(journal: RunJournal, entry: JournalCall, call: ChildCall) -> NoReturn:
    """Suspend the run until the child has ended or waits for its client; see `RunJournal.suspend`."""
    start_entry = JournalEntry(entry.key, entry.kind, STARTED, call.key.encode(), entry.position)
    deadline = journal.run.clock.monotonic() + MAX_WAIT
    wait = Wait(start_entry, start_entry, f"{CHILD_SIGNAL}{call.key}", task_id=call.key)
    await journal.suspend(PendingWait(wait, deadline, None))


def _require_completed(call: ChildCall, result: CallResult) -> CallResult:
    if result.state in (COMPLETED, None):  # None: a message without a task
        return result
    text = f"child task {result.task_id} of agent {call.agent} is {result.state_name}"
    fields = (call.agent, result.task_id, result.state_name, result)
    if is_interrupted(result.state):  # type: ignore[arg-type]
        raise ChildInterrupted(f"{text}: answer it with SendMessage to that task", *fields)
    raise ChildFailed(text, *fields)
