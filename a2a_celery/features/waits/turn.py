"""`Turn.sleep` and `Turn.wait_for`, which wait without occupying a worker slot, and their blocking variants."""

from __future__ import annotations

from datetime import datetime

from ...execution.agents.running_agent import loop_method
from ...execution.agents.turn_members import BlockingTurnMembers, TurnMembers
from ...lifecycle.signals import ReceivedSignal
from .waits import begin_sleep, begin_wait


class WaitMethods(TurnMembers):
    """Methods of `Turn` for waits."""

    @loop_method
    async def sleep(self, seconds: float | None = None, *, until: datetime | None = None) -> None:
        """Sleep for `seconds` or until a time, without occupying a worker slot.

        A sleep of more than five seconds ends the run and frees its slot. At the end of the sleep, any worker calls
        the function again from its beginning, and this call returns immediately. Write the function as described for
        `ask`. A shorter sleep waits in this process.

        Args:
            seconds: Seconds to sleep, up to 366 days.
            until: Time at which the sleep ends, instead of `seconds`; UTC if it has no time zone. If the time has
                passed, the call returns immediately.

        Raises:
            SuspendRun: The run ends. Do not catch this exception, which is not an `Exception`.
            ValueError: An argument is invalid.
            ConfigError: The agent is a plain Celery task, which can retry itself later with ``self.retry``.
        """
        self.stop_if_asking()
        await begin_sleep(self._agent, seconds, until).sleep()

    @loop_method
    async def wait_for(self, name: str, timeout: float | None = None) -> ReceivedSignal:
        """Wait for a signal that another system sends to this task, and return the signal.

        The run ends and frees its slot, as in `sleep`, unless the signal has already arrived. Signals with the same
        name are received in the order in which they were sent, each by one call.

        Args:
            name: Name of the signal: 1 to 64 ASCII letters, digits and ``_ . : -``.
            timeout: Seconds to wait, up to 366 days, or None for no limit. 0 only checks for a signal that
                has already arrived.

        Returns:
            The payload, a JSON value, and the kind of the sender. Clients can send only the signals that the agent's
            option `signals` names.

        Raises:
            TimeoutError: No signal arrived in time. A later run raises the error again.
            SuspendRun: The run ends. Do not catch this exception, which is not an `Exception`.
            ValueError: An argument is invalid.
            ConfigError: The agent is a plain Celery task.
        """
        self.stop_if_asking()
        return await begin_wait(self._agent, name, timeout).wait_for()


class BlockingWaitMethods(BlockingTurnMembers):
    """Blocking variants of `WaitMethods`."""

    def sleep(self, seconds: float | None = None, *, until: datetime | None = None) -> None:
        """See `Turn.sleep`."""
        self._turn.stop_if_asking()
        self._wait_for(begin_sleep(self._turn._agent, seconds, until).sleep)

    def wait_for(self, name: str, timeout: float | None = None) -> ReceivedSignal:
        """See `Turn.wait_for`."""
        self._turn.stop_if_asking()
        return self._wait_for(begin_wait(self._turn._agent, name, timeout).wait_for)
