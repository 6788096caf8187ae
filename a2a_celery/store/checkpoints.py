"""The verb about a run's session while it goes on; at the run's end it is saved by ``runs.settle_run``."""

from __future__ import annotations

from collections.abc import Sequence

from .keys import Keys
from .operation import Operation, script
from .runs import RunLost, RunRef
from .sessions import SavedSince, SessionState, session_arguments


def checkpoint(
    keys: Keys, ref: RunRef, *, token: str, confirmed: int, session: SessionState
) -> Operation[SessionState | RunLost | SavedSince]:
    """Saves the state of a claimed run's session; gives what was saved. Its task is not changed.

    `confirmed` counts the events of the run that the store has confirmed: a state is not saved without its events.
    """

    def parse(answer: Sequence[bytes]) -> SessionState | RunLost | SavedSince:
        match answer[0]:
            case b"saved":
                return session
            case b"conflict":
                return SavedSince(int(answer[1]))
            case _:
                return RunLost.of(answer)

    arguments = [ref.run, token, confirmed, *session_arguments(keys, session)]
    return Operation(script("checkpoint"), keys.task(ref.task_id), arguments, parse)
