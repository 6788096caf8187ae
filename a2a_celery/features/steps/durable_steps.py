"""Durable steps: function calls whose results are recorded, so that later runs of the turn do not repeat the calls.

::

    @step(autoretry_for=(ConnectionError,), retry_backoff=True, timeout=30)
    async def fetch(url: str) -> dict: ...

    page = await fetch(url)                        # recorded under the name "fetch"
    total = await turn.step("count", count, page)  # any function, under a name

A step is recorded when its function has returned and before the caller receives the result. A later run of the turn
receives the recorded result and does not call the function. If a worker dies while it executes a step, the step is
executed again. Other services can recognize the repeated execution by `current_step_key`.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from threading import get_ident
from types import MethodType
from typing import Any, ParamSpec, TypeVar, overload

from celery.exceptions import TaskPredicate

from ...concurrency import call_in_thread, result_of, wait_for
from ...errors import ConfigError, StepError
from ...lifecycle.journal import JournalEntry
from ..retries import RetryPolicy
from .journal import UNFINISHED, JournalCall, RunJournal, current_journal
from .step_results import FAILURE, UnreadableResult, decode_failure, decode_result, encode_failure, encode_result

logger = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

KIND = "step"
"""Kind of the journal entries of durable steps."""

DEFAULT_RETRIES = RetryPolicy(default_retry_delay=1.0)
"""Default retry options of a step. The delay is short, because the run keeps its worker slot during the delay."""


@dataclass(frozen=True, slots=True)
class DurableStep:
    """Function of a durable step, with its options.

    Attributes:
        name: Name under which calls to the decorated function are recorded, or "" without a decorator.
        retry: The function's exceptions that cause another attempt in the same run, and the delays between attempts.
        timeout: Maximum seconds for one attempt, or None for no limit.
    """

    function: Callable[..., Any]
    name: str
    retry: RetryPolicy = DEFAULT_RETRIES
    timeout: float | None = None

    @classmethod
    def of(cls, function: Callable[..., Any]) -> DurableStep:
        """Return the step for `function`, with the options of its `step` decorator if the function has one.

        Raises:
            StepError: `function` cannot be called.
        """
        if not callable(function):
            raise StepError(f"turn.step(name, function, …): {function!r} is not a function")
        durable_step = getattr(function, _ATTRIBUTE, None)
        if not isinstance(durable_step, DurableStep):
            return cls(function, "")
        owner = getattr(function, "__self__", None)
        return (
            durable_step if owner is None else replace(durable_step, function=MethodType(durable_step.function, owner))
        )

    @property
    def is_async(self) -> bool:
        """True if the function is an async function."""
        return inspect.iscoroutinefunction(self.function)


_ATTRIBUTE = "a2a_durable_step"


@overload
def step(function: Callable[P, T], /) -> Callable[P, T]: ...


@overload
def step(
    *,
    name: str | None = None,
    timeout: float | None = None,
    autoretry_for: Sequence[type[Exception]] = ...,
    dont_autoretry_for: Sequence[type[Exception]] = ...,
    max_retries: int | None = ...,
    retry_backoff: bool | int = ...,
    retry_backoff_max: int = ...,
    retry_jitter: bool = ...,
    default_retry_delay: float = ...,
) -> Callable[[Callable[P, T]], Callable[P, T]]: ...


def step(function: Any = None, /, *, name: str | None = None, timeout: float | None = None, **retry: Any) -> Any:
    """Make each call to a function in a run a durable step. Outside a run, the function is called as usual.

    Args:
        function: Async function, or plain function that a synchronous agent calls.
        name: Name of the step, or None for the name of the function.
        timeout: Maximum seconds for one attempt of an async function, or None for no limit. A longer attempt raises
            `TimeoutError`.
        **retry: Retry options of agents; see `RetryPolicy`. By default, `default_retry_delay` is 1 second.

    Raises:
        ConfigError: An option is unknown, invalid, or has no effect.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        durable = DurableStep(function, name or function.__name__, _policy(function.__name__, retry), timeout)
        _require_timeout(durable)
        return _decorate(durable)

    return decorate if function is None else decorate(function)


def _decorate(durable: DurableStep) -> Callable[..., Any]:
    async def call_async(*args: Any, **kwargs: Any) -> Any:
        journal = current_journal()
        if journal is None:
            return await durable.function(*args, **kwargs)
        return await StepCall(journal, durable, durable.name, args, kwargs).result()

    def call(*args: Any, **kwargs: Any) -> Any:
        journal = current_journal()
        if journal is None:
            return durable.function(*args, **kwargs)
        if get_ident() == journal.agent.loop_thread:
            raise RuntimeError(f"{durable.name} is a plain function: await turn.step({durable.name!r}, …) here")
        return StepCall(journal, durable, durable.name, args, kwargs).result_blocking()

    wrapper = update_wrapper(call_async if durable.is_async else call, durable.function)
    setattr(wrapper, _ATTRIBUTE, durable)
    return wrapper


def _policy(function: str, options: Mapping[str, Any]) -> RetryPolicy:
    unknown = set(options) - RetryPolicy.OPTIONS
    if unknown:
        names = ", ".join(sorted(RetryPolicy.OPTIONS | {"name", "timeout"}))
        raise ConfigError(f"step {function!r}: unknown option {min(unknown)!r}; known: {names}")
    retry_policy = RetryPolicy.from_options(function, options)
    policy = replace(DEFAULT_RETRIES, **{name: getattr(retry_policy, name) for name in options})
    if options and not policy.autoretry_for:
        raise ConfigError(f"step {function!r}: {min(options)} has no effect without autoretry_for")
    return policy


def _require_timeout(durable: DurableStep) -> None:
    timeout = durable.timeout
    if timeout is None:
        return
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or timeout <= 0:
        raise ConfigError(f"step {durable.name!r}: timeout = {timeout!r}: a number of seconds above 0, or None")
    if not durable.is_async:
        raise ConfigError(f"step {durable.name!r}: timeout needs an async function: a thread cannot be stopped")


class StepCall:
    """Call of a step: its recorded result, or its execution.

    Raises:
        CancelledError: The run must stop.
        StepsChanged: An earlier run recorded a different step at this position.
        StepError: The step cannot be recorded.
    """

    def __init__(
        self, journal: RunJournal, durable: DurableStep, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> None:
        self._journal = journal
        self._durable = durable
        self._call = journal.begin(KIND, name, (args, kwargs))
        self._function = partial(durable.function, *args, **kwargs)

    async def result(self) -> Any:
        """Return the recorded result of the step, or execute the step and record its result.

        Raises:
            Exception: The recorded failure of the step, or the failure of its last attempt.
            CancelledError: The run must stop, or is lost.
            StepError: The result cannot be recorded.
        """
        entry = self._call.entry
        if entry is None:
            with self._journal.in_progress(self._call):
                entry = await self._execute()
        return replay(self._journal, self._call, entry)

    def result_blocking(self) -> Any:
        """Return the result in the thread of a synchronous agent; see `result`.

        A plain function is called in this thread. If the run must stop while the function is executed, the result is
        recorded before the run stops.
        """
        entry = self._call.entry
        if entry is None and self._durable.is_async:
            return self._wait_for(self.result())
        if entry is None:
            with self._journal.in_progress(self._call):
                entry = self._execute_blocking()
            if self._journal.is_stopping:
                raise asyncio.CancelledError
        return replay(self._journal, self._call, entry)

    async def _execute(self) -> JournalEntry:
        """Execute the step and record its result, and return the entry. See `result`."""
        journal, call = self._journal, self._call
        try:
            with journal.executing(call):
                value = await self._attempt()
            form, content = encode_result(call.name, value)
        except _CancelledLate as cancelled:
            await journal.record(call, *encode_result(call.name, cancelled.value))
            raise asyncio.CancelledError from None  # asyncio.timeout of Python 3.11 recognizes no subclass
        except BaseException as error:
            defer_failure(journal, call, error)
            raise
        try:
            return await journal.record(call, form, content)
        except StepError as error:  # any other exception, such as a cancellation, leaves the queued entry
            defer_failure(journal, call, error)
            raise

    def _execute_blocking(self) -> JournalEntry:
        """Execute a plain step in the agent's thread and record its result, and return the entry."""
        journal, call = self._journal, self._call
        try:
            with journal.executing(call):
                value = self._attempt_blocking()
            form, content = encode_result(call.name, value)
            recording = asyncio.run_coroutine_threadsafe(journal.record(call, form, content), journal.agent.loop)
        except BaseException as error:
            defer_failure(journal, call, error)
            raise
        try:
            return result_of(recording)
        except StepError as error:  # an interrupt of the thread leaves the queued entry
            defer_failure(journal, call, error)
            raise

    async def _attempt(self) -> Any:
        while True:
            try:
                async with asyncio.timeout(self._durable.timeout):
                    return await _call_function(self._durable, self._function)
            except Exception as error:
                delay = self._retry_delay(error)
                if delay is None:
                    raise
            self._call.attempts += 1
            await self._journal.run.clock.sleep(delay)

    def _attempt_blocking(self) -> Any:
        while True:
            try:
                return self._function()
            except Exception as error:
                delay = self._retry_delay(error)
                if delay is None:
                    raise
            self._call.attempts += 1
            self._wait_for(self._journal.run.clock.sleep(delay))

    def _retry_delay(self, error: Exception) -> float | None:
        """Return the seconds until the next attempt after `error`, or None if no attempt is left."""
        policy, retries = self._durable.retry, self._call.attempts - 1
        if not policy.is_retried(error) or (policy.max_retries is not None and retries >= policy.max_retries):
            return None
        requested_delay = policy.requested_delay(error, self._journal.run.clock.time())
        delay = policy.backoff(retries) if requested_delay is None else requested_delay
        logger.info("step %s is retried in %g s after %s", self._call.key, delay, type(error).__qualname__)
        return delay

    def _wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        return wait_for(work, self._journal.agent.loop, lambda: self._journal.is_stopping)


def replay(journal: RunJournal, call: JournalCall, entry: JournalEntry) -> Any:
    """Decode the result in `entry`. The run that recorded the result also uses the decoded result, so that all runs
    receive equal values."""
    if entry.form == FAILURE:
        raise _decode(journal, call, decode_failure, entry.content)
    return _decode(journal, call, partial(decode_result, entry.form), entry.content)


def _decode(journal: RunJournal, call: JournalCall, decode: Callable[[bytes], Any], content: bytes) -> Any:
    try:
        return decode(content)
    except UnreadableResult as problem:
        raise journal.changed(f"step {call.key}: {problem}") from problem


def defer_failure(journal: RunJournal, call: JournalCall, error: BaseException) -> None:
    """Defer the entry for the failure of a step.

    Raises:
        StepFailed: `error` cannot be recorded. The caller of the step receives the `StepFailed` instead.
    """
    if not isinstance(error, Exception) or isinstance(error, TaskPredicate):
        journal.defer(call, UNFINISHED, b"")  # a signal, or a cancellation by the agent
        return
    content, failure = encode_failure(call.name, error)
    journal.defer(call, FAILURE, content)
    try:
        if failure is not error:
            raise failure from error
    finally:
        del failure  # the traceback of the exception holds this frame


async def _call_function(durable: DurableStep, function: Callable[[], Any]) -> Any:
    """Call the function of a step. A plain function is called in a thread, where it may block."""
    if durable.is_async:
        return await function()
    result = await _thread_result(asyncio.ensure_future(call_in_thread(function)))
    return await result if inspect.isawaitable(result) else result


class _CancelledLate(asyncio.CancelledError):
    """Cancellation of an agent whose step a thread was executing. The thread has returned `value`."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value


async def _thread_result(thread: asyncio.Future[Any]) -> Any:
    """Return the result of a thread. A cancellation takes effect when the thread has ended, because the thread cannot
    be stopped."""
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        await asyncio.wait({thread})
        if thread.cancelled() or thread.exception() is not None or inspect.isawaitable(thread.result()):
            raise
        raise _CancelledLate(thread.result()) from None
    finally:
        del thread  # the future holds the exception, whose traceback holds this frame
