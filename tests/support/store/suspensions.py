"""Test helper for suspended runs and signals in the store."""

from __future__ import annotations

from collections.abc import Sequence

from a2a_celery.lifecycle.journal import JournalEntry, RunRecord
from a2a_celery.lifecycle.references import RunRef
from a2a_celery.lifecycle.refusals import Refusal
from a2a_celery.store.runs.commands import Claim, RunLost
from a2a_celery.store.runs.suspension import SuspendedRun, Wait, resume_due_runs, suspend_run, take_signal
from a2a_celery.store.tasks.signals import SignalResumed, SignalStored, send_signal
from tests.support.store.seeds import Seeds


def received_entry(name: str, number: int = 1) -> JournalEntry:
    """Return the journal entry of a wait that received a signal, without the payload."""
    return JournalEntry(f"{name}#{number}", "wait", "json", b"", number)


def timeout_entry(name: str, number: int = 1) -> JournalEntry:
    """Return the journal entry of a wait that timed out."""
    return JournalEntry(f"{name}#{number}", "wait", "timeout", b"", number)


def wait_for(
    name: str,
    number: int = 1,
    *,
    wait_us: int | None = None,
    until_us: int | None = None,
    task_id: str | None = None,
) -> Wait:
    """Return a wait for the signal `name`, which the task `task_id` sends unless it is None."""
    return Wait(received_entry(name, number), timeout_entry(name, number), name, wait_us, until_us, task_id)


def timer(*, wait_us: int | None = None, until_us: int | None = None) -> Wait:
    """Return a wait without a signal, which can only time out."""
    return Wait(received_entry("sleep"), timeout_entry("sleep"), "", wait_us, until_us)


class Suspensions:
    """Test helper that suspends runs, sends signals and resumes runs."""

    def __init__(self, seeds: Seeds) -> None:
        self.seeds, self.store, self.keys = seeds, seeds.store, seeds.keys

    async def suspend_run(
        self, claim: Claim, wait: Wait, *events: RunRecord, written_count: int = 0, options: bytes = b""
    ) -> SuspendedRun:
        """Suspend the run of `claim`."""
        operation = suspend_run(
            self.keys,
            claim.ref,
            token=claim.token,
            written_count=written_count,
            events=events,
            wait=wait,
            options=options,
        )
        reply = await self.store.run(operation)
        assert isinstance(reply, SuspendedRun), reply
        return reply

    async def send_signal(
        self, task_id: str, name: str, payload: bytes = b"1", signal_id: str = ""
    ) -> SignalStored | SignalResumed | Refusal:
        """Send a signal as an operator."""
        signal_id = signal_id or f"{name}-{payload!r}"
        return await self.store.run(
            send_signal(self.keys, None, task_id, name=name, payload=payload, signal_id=signal_id)
        )

    async def take_signal(self, claim: Claim, name: str, number: int = 1) -> JournalEntry | RunLost | None:
        """Consume a signal for the run of `claim`."""
        return await self.store.run(
            take_signal(
                self.keys, claim.ref, token=claim.token, confirmed=0, signal=name, received=received_entry(name, number)
            )
        )

    async def resume_runs(self, limit: int = 100) -> int:
        """Resume at most `limit` due runs, and return the number of resumed runs."""
        return len(await self.store.run(resume_due_runs(self.keys, limit=limit)))

    async def make_due(self, ref: RunRef) -> None:
        """Make a suspended run due."""
        await self.store.redis.zadd(self.keys.suspended, {ref.name: 1}, xx=True)

    async def suspended_runs(self) -> Sequence[str]:
        """Return the names of the suspended runs."""
        return [name.decode() for name in await self.store.redis.zrange(self.keys.suspended, 0, -1)]

    async def queued_runs(self) -> Sequence[str]:
        """Return the names of the queued runs."""
        return [name.decode() for name in await self.store.redis.zrange(self.keys.dispatch, 0, -1)]
