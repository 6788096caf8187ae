"""Command that sends a signal to a task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...lifecycle.references import RunRef
from ...lifecycle.refusals import Reason, Refusal
from ..keys import AnyScope, Keys
from ..verbs import Reply, Sections, TaskId, parsed_by, verb
from .replies import Reasons, refusal

MAX_STORED_SIGNALS = 100
"""Maximum number of a task's signals that no run has received."""

REMEMBERED_SIGNALS = 200
"""Number of newest signals of a task whose ids are stored to detect repeated signals."""


@dataclass(frozen=True, slots=True)
class SignalStored:
    """Accepted signal that has resumed no run. The signal is stored, unless an earlier signal has the same id."""


@dataclass(frozen=True, slots=True)
class SignalResumed:
    """Signal that has resumed the suspended run `ref`. The caller publishes the run with `options`, unless the run is
    blocked."""

    ref: RunRef
    agent: str
    options: bytes
    is_blocked: bool = False


@verb
def send_signal(
    keys: Keys,
    scope: AnyScope,
    task_id: TaskId,
    *,
    name: str,
    payload: bytes,
    signal_id: str,
    is_nearly_full: bool = False,
    max_bytes: int | None = None,
    agents_without_signals: Sequence[str] = (),
    sections: Sections = (),
) -> Reply[SignalStored | SignalResumed | Refusal]:
    """Send a signal to a task.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the task, or None for any scope.
        task_id: Id of the task.
        name: Name of the signal.
        payload: Payload and sender as JSON; see `encode_signal`.
        signal_id: Id of the signal. A repeated call with one of the `REMEMBERED_SIGNALS` newest ids has no effect.
        is_nearly_full: True to refuse the signal because the server's memory is nearly full.
        max_bytes: Maximum size of the task including the signal, in bytes, or None for no limit.
        agents_without_signals: Names of agents that receive no signals.
        sections: Sections of features.
    """

    reasons: Reasons = {
        b"missing": (Reason.MISSING, {}),
        b"unreceived": (Reason.NO_SIGNALS, {}),
        b"ended": (Reason.SIGNAL_AFTER_END, {}),
        b"full": (Reason.TOO_MANY_SIGNALS, {"maximum": MAX_STORED_SIGNALS}),
        b"large": (Reason.SIGNAL_TOO_LARGE, {"maximum": max_bytes}),
        b"limited": (Reason.LIMITED, {}),
    }

    def parse(reply: Sequence[bytes]) -> SignalStored | SignalResumed | Refusal:
        match reply[0]:
            case b"resumed":
                _, run, agent, options, blocked = reply
                return SignalResumed(RunRef(task_id, int(run)), agent.decode(), options, blocked == b"1")
            case b"stored":
                return SignalStored()
            case _:
                return parsed_by(sections, task_id, reply) or refusal(task_id, reply, reasons)

    return Reply(parse)
