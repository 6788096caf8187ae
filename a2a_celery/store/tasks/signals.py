"""Command that sends a signal to a task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..codec import state_of
from ..keys import Keys, Scope
from ..operation import Operation, script
from ..runs.commands import RunRef
from .commands import FIRST_PUBLISH_GRACE_US, TaskLimits, limit_argument
from .results import Ended, Full, Limited, Missing, TooLarge

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


@dataclass(frozen=True, slots=True)
class SignalUnreceived:
    """Refusal because the task's agent receives no signals. Nothing was written."""

    agent: str


SentSignal = SignalStored | SignalResumed | SignalUnreceived | Missing | Ended | Full | TooLarge | Limited
"""Result of `send_signal`."""


def send_signal(
    keys: Keys,
    scope: Scope | None,
    task_id: str,
    *,
    name: str,
    payload: bytes,
    signal_id: str,
    limits: TaskLimits | None = None,
    max_bytes: int | None = None,
    agents_without_signals: Iterable[str] = (),
) -> Operation[SentSignal]:
    """Send a signal to a task.

    Args:
        keys: Keys of the deployment.
        scope: Scope of the task, or None for any scope.
        task_id: Id of the task.
        name: Name of the signal.
        payload: Payload as JSON.
        signal_id: Id of the signal. A repeated call with one of the `REMEMBERED_SIGNALS` newest ids has no effect.
        limits: Limits of stored bytes and memory, or None for no limits.
        max_bytes: Maximum size of the task including the signal, in bytes, or None for no limit.
        agents_without_signals: Names of agents that receive no signals.
    """

    def parse(reply: Sequence[bytes]) -> SentSignal:
        match reply[0]:
            case b"resumed":
                _, run, agent, options, blocked = reply
                return SignalResumed(RunRef(task_id, int(run)), agent.decode(), options, blocked == b"1")
            case b"stored":
                return SignalStored()
            case b"unreceived":
                return SignalUnreceived(reply[1].decode())
            case b"missing":
                return Missing()
            case b"ended":
                return Ended(state_of(reply[1]))
            case b"full":
                return Full()
            case b"large":
                return TooLarge()
            case _:
                return Limited.parse(reply)

    return Operation(
        script("send_signal"),
        keys.task(task_id),
        [
            "*" if scope is None else str(scope),
            *(name, payload, signal_id, FIRST_PUBLISH_GRACE_US, MAX_STORED_SIGNALS, REMEMBERED_SIGNALS),
            limit_argument(keys, scope or Scope(), limits),
            "" if max_bytes is None else max_bytes,
            "".join(f"\n{agent}\n" for agent in agents_without_signals),
        ],
        parse,
    )
