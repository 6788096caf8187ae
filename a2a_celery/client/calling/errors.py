"""Errors of steps. Their arguments are JSON, so that every result backend restores them.

A call that does not reach an agent raises an error of ``client.errors``, for example `AgentUnreachable`.
"""

from __future__ import annotations

from typing import Any

from ...lifecycle.states import CANCELED, FAILED, REJECTED
from ..errors import RemoteError
from ..result import Result

MAX_TEXT_LENGTH = 500
"""Characters of the agent's text in an error's text. The result has the complete text."""


class CallEnded(RemoteError):
    """The remote task did not complete."""

    def __init__(self, text: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(text, data)  # result backends rebuild it from its args
        self._data = data

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:  # in logs and in Flower
        return f"{type(self).__name__}({self.args[0]!r})"

    @property
    def result(self) -> Result:
        """Result of the remote task; empty if unknown."""
        return Result() if self._data is None else Result.from_dict(self._data)


class CallFailed(CallEnded):
    """The remote task is FAILED."""


class CallRejected(CallEnded):
    """The remote task is REJECTED."""


class CallCanceled(CallEnded):
    """The remote task is CANCELED, but not by this step."""


class CallInterrupted(CallEnded):
    """The remote task is in INPUT_REQUIRED or AUTH_REQUIRED, and continues when it is answered."""


class CallTimedOut(CallEnded):
    """The remote task exceeded the step's `timeout` and is being cancelled."""


_BY_STATE: dict[int | None, tuple[type[CallEnded], str]] = {
    FAILED: (CallFailed, "the task failed"),
    REJECTED: (CallRejected, "the agent rejected the task"),
    CANCELED: (CallCanceled, "the task was canceled"),
}


def error_of(url: str, result: Result) -> CallEnded | None:
    """Return the error of a result, or None if the task is completed or continues."""
    if result.stop_reason == "interrupt":
        return call_error(CallInterrupted, url, "the agent asks", result)
    found = _BY_STATE.get(result.state)
    return None if found is None else call_error(found[0], url, found[1], result)


def call_error(kind: type[CallEnded], url: str, what: str, result: Result) -> CallEnded:
    """Return an error of `kind` with the agent's text."""
    words = result.text[:MAX_TEXT_LENGTH]
    return kind(f"{url}: {what}{': ' if words else ''}{words}", result_data(result))


def result_data(result: Result) -> dict[str, Any]:
    """Return `result` as JSON without the task's history, to keep messages and results small."""
    data = result.to_dict()
    if data["task"]:
        data["task"].pop("history", None)
    return data
