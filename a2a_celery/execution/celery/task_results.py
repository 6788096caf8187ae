"""Results and exceptions that Celery gets for the outcome of a run."""

from __future__ import annotations

from celery.exceptions import Ignore, Retry

from ...lifecycle import Canceled, Failed, Lost, Outcome, Paused, Refused, Rejected, Retried
from ...lifecycle.outcomes import AGENT_FAILED, INVALID_ANSWER, OUT_OF_TIME, WORKER_LOST
from ...lifecycle.states import CANCELED, REJECTED
from ..retries import without_cycle
from .request import DROPPED, RunConcluded, RunFailed, RunRetried


def celery_result(outcome: Outcome | None) -> str:
    """Return the result of the Celery task of a run that completed.

    Raises:
        RunFailed: The run failed. The text is one of our sentences: an agent's may quote the client.
        RunConcluded: The run ended otherwise, or its message did not begin it.
        Retry: The run is retried.
        Ignore: Another process decides how the run goes on.
    """
    match outcome:
        case Failed(text, reference):
            sentence = text if text in (INVALID_ANSWER, OUT_OF_TIME, WORKER_LOST) else AGENT_FAILED
            raise RunFailed(f"{sentence} [reference {reference}]" if reference else sentence)
        case Retried(when=when, cause=cause):
            raise without_cycle(Retry(exc=RunRetried(cause), when=when or 0))
        case Lost():
            raise Ignore
        case Canceled():
            raise RunConcluded.in_state(CANCELED)
        case Rejected() | Refused():
            raise RunConcluded.in_state(REJECTED)
        case Paused(state):
            raise RunConcluded.in_state(state)
        case None:
            raise RunConcluded(DROPPED)
        case _:
            return "A2A: COMPLETED"
