"""Calls of other agents by a function agent: `Turn.call`.

A call starts a task, the child of the agent's task, and returns its result. The id of the child follows from the key of
the call in the journal, so that each run of the turn finds the same child. The journal records the id of the child, and
then its result.
"""

from __future__ import annotations

import json
from typing import Any

from a2a.utils.errors import A2AError

from ...errors import ChildFailed, ChildInterrupted, ChildRefused
from ...lifecycle import is_interrupted
from ...lifecycle.states import COMPLETED
from ..agent_caller import AgentCaller, CallResult, ChildCall
from .journal import UNFINISHED, JournalCall, RunJournal

KIND = "call"
"""Kind of the journal's entries."""

STARTED, RESULT, REFUSED = "started", "json", "refused"
"""Forms of the journal's entries: the id of the child, its result, and the text of an error without a child."""


async def perform_call(caller: AgentCaller, journal: RunJournal, entry: JournalCall, call: ChildCall) -> Any:
    """Return the result of a call: the recorded one, or that of the child.

    Raises:
        ChildFailed: The child did not complete; `ChildInterrupted` if it asks a question.
        ChildRefused: The agent refused the message, and there is no child.
        StepError: The result is too large for the journal.
    """
    recorded = entry.entry
    if recorded is not None and recorded.form == REFUSED:
        raise ChildRefused(recorded.content.decode(), call.agent)
    if recorded is not None and recorded.form == RESULT:
        return _completed(call, caller.decode(json.loads(recorded.content)))
    try:
        if recorded is None:
            result = await caller.start(call)
            if result.task_id:
                await journal.record(entry, STARTED, result.task_id.encode())
        if recorded is not None or result.stop_reason is None:
            task_id = recorded.content.decode() if recorded is not None else result.task_id
            result = await caller.result(call, task_id)
    except A2AError as e:
        text = f"agent {call.agent} refused the call: {type(e).__name__}: {e.message}"
        journal.defer(entry, REFUSED, text.encode())
        raise ChildRefused(text, call.agent) from e
    except BaseException:
        journal.defer(entry, UNFINISHED, b"")  # an agent that goes on calls the same child again
        raise
    content = json.dumps(caller.encode(result), ensure_ascii=False, separators=(",", ":"))
    await journal.record(entry, RESULT, content.encode())
    return _completed(call, result)


def _completed(call: ChildCall, result: CallResult) -> CallResult:
    if result.state in (COMPLETED, None):  # None: a message without a task
        return result
    text = f"child task {result.task_id} of agent {call.agent} is {result.state_name}"
    fields = (call.agent, result.task_id, result.state_name, result)
    if is_interrupted(result.state):  # type: ignore[arg-type]
        raise ChildInterrupted(f"{text}: answer it with SendMessage to that task", *fields)
    raise ChildFailed(text, *fields)
