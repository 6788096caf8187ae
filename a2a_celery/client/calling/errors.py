"""How a call ends that brings no answer. Each error is made of JSON alone, so that every result backend keeps it whole.

What could not be asked at all is `AgentUnreachable`, `CallRefused` and the others of ``client.failures``.
"""

from __future__ import annotations

from typing import Any

from ...lifecycle.states import CANCELED, FAILED, REJECTED
from ..failures import RemoteError
from ..result import Result

MOST_TEXT = 500
"""Characters of an agent's words in an error's text; all of them are in its result."""


class CallEnded(RemoteError):
    """The remote task brought no answer. `result` is how it stands."""

    def __init__(self, text: str, data: dict[str, Any] | None = None) -> None:
        super().__init__(text, data)  # result backends make it again from its args
        self._data = data

    def __str__(self) -> str:
        return str(self.args[0])

    def __repr__(self) -> str:  # in logs and in Flower
        return f"{type(self).__name__}({self.args[0]!r})"

    @property
    def result(self) -> Result:
        """The remote task; empty if it is not known."""
        return Result() if self._data is None else Result.from_dict(self._data)


class CallFailed(CallEnded):
    """The remote task FAILED."""


class CallRejected(CallEnded):
    """The agent REJECTED the task."""


class CallCanceled(CallEnded):
    """The remote task was CANCELED, by somebody else."""


class CallInterrupted(CallEnded):
    """The agent asks: the task is in INPUT_REQUIRED or AUTH_REQUIRED, and goes on when it is answered."""


class CallTimedOut(CallEnded):
    """The remote task had not ended after `timeout`, and is being cancelled."""


_BY_STATE: dict[int | None, tuple[type[CallEnded], str]] = {
    FAILED: (CallFailed, "the task failed"),
    REJECTED: (CallRejected, "the agent rejected the task"),
    CANCELED: (CallCanceled, "the task was canceled"),
}


def ending_of(url: str, result: Result) -> CallEnded | None:
    """The error that a `result` is; None if it is an answer, or goes on."""
    if result.stop_reason == "interrupt":
        return ended(CallInterrupted, url, "the agent asks", result)
    found = _BY_STATE.get(result.state)
    return None if found is None else ended(found[0], url, found[1], result)


def ended(kind: type[CallEnded], url: str, what: str, result: Result) -> CallEnded:
    """An error of `kind`, with the agent's words."""
    words = result.text[:MOST_TEXT]
    return kind(f"{url}: {what}{': ' if words else ''}{words}", data_of(result))


def data_of(result: Result) -> dict[str, Any]:
    """`result` as JSON, without the task's history: what was said to get there is in no broker and no backend twice."""
    data = result.to_dict()
    if data["task"]:
        data["task"].pop("history", None)
    return data
