"""Model and tool calls of a framework's agent as durable steps, for hooks that can replace a call with its result.

`RecordedCall.begin` returns a call with the result that an earlier run of the turn recorded, if there is one. Without a
result, the hook makes the call, and passes the result to `finish` or the exception to `fail`. Sequential calls are
recognized by their order, and parallel calls by their arguments; see ``features/steps/journal.py``.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Hashable
from contextlib import AbstractContextManager
from typing import Any

from ..concurrency import result_of
from ..errors import StepError
from ..execution.events.activities import Execution, current_execution
from ..features.steps.journal import UNFINISHED, JournalCall, RunJournal, current_journal
from ..features.steps.step_results import FAILURE, UnreadableResult, decode_failure, encode_failure
from ..lifecycle.execution import ENDS
from ..lifecycle.json_values import json_bytes

logger = logging.getLogger(__name__)

MODEL = "model"
"""Kind and name of the entries of model calls."""

TOOL = "tool"
"""Kind of the entries of tool calls. The name of such an entry is the name of the tool."""


class RecordedCall:
    """Model or tool call of the current run, with its entry in the journal.

    Attributes:
        result: Result that an earlier run recorded, as a JSON value, or None if the call must be made.
    """

    def __init__(self, journal: RunJournal, call: JournalCall) -> None:
        self._journal = journal
        self._call = call
        self.result = None if call.entry is None else self._decode_result(call.entry.form, call.entry.content)

    @classmethod
    def begin(cls, kind: str, name: str, arguments: Any) -> RecordedCall | None:
        """Return the next call with this name, or None outside a run or on an event loop other than the run's.

        Args:
            kind: `MODEL` or `TOOL`.
            name: `MODEL`, or the name of the tool.
            arguments: Arguments of the call, by which parallel calls are recognized.

        Raises:
            CancelledError: The run must stop.
            StepsChanged: An earlier run recorded a different call at this position.
            StepError: The name is invalid, the task has ended, or the journal has too many entries.
            Exception: The exception that an earlier run recorded for the call.
        """
        journal = current_journal()
        if journal is None or asyncio.get_running_loop() is not journal.agent.loop:
            return None
        return cls(journal, journal.begin(kind, name, arguments))

    @classmethod
    def begin_blocking(cls, kind: str, name: str, arguments: Any) -> RecordedCall | None:
        """Return the next call like `begin`, in a thread that may block. Return None outside a run."""
        journal = current_journal()
        return None if journal is None else cls(journal, journal.begin(kind, name, arguments))

    def executing(self) -> AbstractContextManager[None]:
        """Make durable steps inside the ``with`` block part of this call."""
        return self._journal.executing(self._call)

    async def finish(self, result: Any) -> None:
        """Record the result before the framework receives it.

        A result that is too large or cannot be serialized as JSON is used only by this run. A later run makes the call
        again.

        Raises:
            CancelledError: The run is lost. The result must not be used.
        """
        try:
            content = json_bytes(result)
            await self._journal.record(self._call, "json", content)
        except (StepError, TypeError, ValueError, RecursionError) as problem:
            self.skip(problem)

    def finish_blocking(self, result: Any) -> None:
        """Record the result like `finish`, from a thread other than the thread of the run's event loop."""
        result_of(asyncio.run_coroutine_threadsafe(self.finish(result), self._journal.agent.loop))

    def skip(self, problem: Exception) -> None:
        """Log `problem` as the reason why the result is not recorded. A later run makes the call again."""
        call = self._call
        logger.warning("%s call %s is not recorded, and may be repeated: %s", call.kind, call.key, problem)
        self.abandon()

    def fail(self, error: Exception) -> None:
        """Record the failure of the call if the framework continues after the failure."""
        self._journal.defer(self._call, FAILURE, self.dump_failure(error).encode())

    def dump_failure(self, error: Exception) -> str:
        """Serialize `error` to text for a result that contains a failure."""
        return encode_failure(self._call.name, error)[0].decode()

    def load_failure(self, text: str) -> Exception:
        """Recreate the exception that `dump_failure` serialized.

        Raises:
            StepsChanged: The exception's class was removed, or does not accept the recorded arguments.
        """
        try:
            return decode_failure(text.encode())
        except UnreadableResult as problem:
            raise self._journal.changed(f"{self._call.kind} call {self._call.key}: {problem}") from problem

    def abandon(self) -> None:
        """Mark the call as unfinished. A later run makes the call again."""
        self._journal.defer(self._call, UNFINISHED, b"")

    def _decode_result(self, form: str, content: bytes) -> Any:
        if form == FAILURE:
            raise self.load_failure(content.decode())
        return json.loads(content)


class OpenCalls:
    """Registry of unfinished calls, for frameworks with separate hooks before and after a call. The framework provides
    the keys."""

    def __init__(self) -> None:
        self._open: dict[Hashable, tuple[Execution, RecordedCall]] = {}

    def begin(self, key: Hashable, kind: str, name: str, arguments: Any) -> Any:
        """Return the recorded result of the next call with this name, or None if the call must be made.

        See `RecordedCall.begin`.
        """
        execution, call = current_execution(), RecordedCall.begin(kind, name, arguments)
        if execution is None or call is None:
            return None
        for ended_key in [other for other, (run, _) in self._open.items() if run.state in ENDS]:
            del self._open[ended_key]  # a cancelled agent does not report the end of its calls
        if call.result is None:
            self._open[key] = execution, call
        return call.result

    def drop(self, key: Hashable) -> RecordedCall | None:
        """Remove and return the open call with this key. Return None if no such call is open."""
        return self._open.pop(key, (None, None))[1]
