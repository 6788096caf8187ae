"""What Celery is told of a run that is over."""

from __future__ import annotations

from celery.exceptions import Ignore

from ..lifecycle import Canceled, Failed, Lost, Outcome, Paused, Refused, Rejected
from ..lifecycle.outcomes import AGENT_FAILED, OUT_OF_TIME, WORKER_LOST
from ..lifecycle.states import CANCELED, COMPLETED, REJECTED
from .request import DROPPED, RunFailed, ended_in


def told_celery(outcome: Outcome | None) -> str:
    """What the Celery task of a run returns: `RunRequest` makes Celery's event of it, and Flower shows that.

    Raises:
        RunFailed: it failed. Our own sentence says how: an agent's may have what its client said.
        Ignore: how it goes on is for others to say.
    """
    match outcome:
        case Failed(text, reference):
            sentence = text if text in (OUT_OF_TIME, WORKER_LOST) else AGENT_FAILED
            raise RunFailed(f"{sentence} [reference {reference}]" if reference else sentence)
        case Lost():
            raise Ignore
        case Canceled():
            return ended_in(CANCELED)
        case Rejected() | Refused():
            return ended_in(REJECTED)
        case Paused(state):
            return ended_in(state)
        case None:
            return DROPPED
        case _:
            return ended_in(COMPLETED)
