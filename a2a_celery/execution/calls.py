"""Plain Celery tasks as a run sees them: calls in a thread of Celery's, which may leave the run to others."""

from __future__ import annotations

from concurrent.futures import Future
from datetime import timedelta
from typing import Protocol

from ..clock import SYSTEM_CLOCK
from ..config import Settings
from ..dispatch import RunOptions
from ..lifecycle import Event, Outcome
from ..lifecycle.steps import Step
from ..store import Keys, Operation
from ..store.release import Released, hand_on, release_run
from ..store.runs import Claim, Illegal, RunLost
from .adapters import Adapter
from .events import GiveBack

Answer = Released | RunLost | Illegal


class ThreadedCall(Adapter, Protocol):
    """A plain Celery task that is called in the thread it came to."""

    retries: int

    retry_is_published: bool
    """Whether the broker has Celery's message for the next attempt, if the task was retried."""

    @property
    def max_attempts(self) -> int | None:
        """How often Celery runs it at most; None: as often as it takes."""
        ...

    def lend_thread(self, run: Future[Outcome | None]) -> Outcome | None:
        """Makes the call in this thread; returns when `run` is over."""
        ...

    def options(self, stored: bytes) -> RunOptions:
        """How the run is published again that Celery retries."""
        ...


def retried(keys: Keys, claim: Claim, call: ThreadedCall, settings: Settings) -> GiveBack:
    """Lets Celery's message for the next attempt claim the run; a watcher publishes it, should that get lost, or at its
    time if it was not published."""
    options = call.options(claim.options)
    wait = timedelta(seconds=settings.redispatch_after) if call.retry_is_published else timedelta(0)
    again = options.again_in(SYSTEM_CLOCK.now(), wait)

    def give_back(before: int, rest: list[Event | Step]) -> Operation[Answer]:
        return release_run(
            keys,
            claim.ref,
            token=claim.token,
            before=before,
            events=rest,
            options=options.to_json(),
            retries=options.retries,
            again_us=again // timedelta(microseconds=1),
        )

    return give_back


def handed_on(keys: Keys, claim: Claim, canvas: str) -> GiveBack:
    """Lets `canvas` end the run."""

    def give_back(before: int, rest: list[Event | Step]) -> Operation[Answer]:
        return hand_on(keys, claim.ref, token=claim.token, before=before, events=rest, canvas=canvas)

    return give_back
