"""`a2a.call`: a canvas step that an agent somewhere does, while no worker waits for it.

The first run of the Celery task sends the message, under an id that is made of the Celery task's own, so that a copy of
the run sends the very same. Then it is retried, as Celery has it, with the remote task's id in its arguments, until
that task has ended: Celery keeps chain, group, chord and link_error with it. What waits for its time is a message, in a
worker's memory and at the broker; no slot of a pool.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, NoReturn, cast
from uuid import NAMESPACE_URL, uuid5

from a2a.types import Message
from a2a.types import Task as A2ATask
from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    PushNotificationNotSupportedError,
    UnsupportedOperationError,
)
from celery import Celery, Task, states
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError

from ...clock import SYSTEM_CLOCK
from ...errors import ConfigError
from ..failures import AgentUnreachable, AnswerUnreadable, CallRefused, RemoteError
from ..result import Result
from .canceling import cancel_task, cancel_there
from .content import message_of, portable
from .errors import CallTimedOut, data_of, ended, ending_of
from .loop import CallsPerProcess
from .progress import Progress
from .remotes import Remote, find
from .webhook import Webhook
from .worker import watch_for_revoked

logger = logging.getLogger(__name__)

NAME = "a2a.call"
DAY = 24 * 3600.0
UNREACHABLE_FOR = 600.0
ON_INTERRUPT = ("raise", "return")


class CallTask(Task):  # type: ignore[misc]
    """See `call_task`, which makes it."""

    name = NAME
    # A copy asks again for the task that the first one sent; so the broker may keep it until it was seen to.
    acks_late = True
    reject_on_worker_lost = True
    max_retries = None
    ignore_result = False
    Request = "a2a_celery.client.calling.worker:CallRequest"

    remotes: Mapping[str, Remote] = {}
    webhook: Webhook | None = None
    calls: CallsPerProcess
    canceling: Task

    def s(self, url: str, *content: Any, **options: Any) -> Signature:
        """A step that sends `content` to the agent at `url`, and after it what the step before gave.

        `url` is an http(s) URL, or the name of a remote. `content` is text, JSON data, parts, or a message. `options`
        are those of `run`.

        Raises:
            ConfigError, TypeError, ValueError: something can't be used as it is; says what.
        """
        step: Signature = super().s(*self._checked(url, content, options), url=url, **options)
        return step

    def si(self, url: str, *content: Any, **options: Any) -> Signature:
        """The same, but what the step before gave is left out."""
        return super().si(*self._checked(url, content, options), url=url, **options)

    def delay(self, url: str, *content: Any, **options: Any) -> Any:
        """Begins such a step at once."""
        return self.s(url, *content, **options).apply_async()

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """As Celery's own.

        Raises:
            TypeError: the URL is not given by name, so what a chain puts first could be taken for it.
        """
        if not kwargs or "url" not in kwargs:
            raise TypeError(f"{self.name}: give the URL by name, kwargs={{'url': …}}, or make the step with .s(url, …)")
        return super().apply_async(args, kwargs, *rest, **options)

    def run(
        self,
        *content: Any,
        url: str,
        task_id: str = "",
        context_id: str = "",
        timeout: float | None = DAY,
        unreachable_for: float = UNREACHABLE_FOR,
        on_interrupt: str = "raise",
        progress: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """What the agent answered, as `Result.to_dict` has it, without the history of its task.

        `task_id` is a task that waits for this message, `context_id` the conversation that a new one belongs to.
        `timeout` is how many seconds the remote task may take, None: as many as it likes; `unreachable_for` how many
        the agent may be away at a time. `on_interrupt` says what a question of the agent is: "raise" `CallInterrupted`,
        or "return" it as the result. `progress` is our own.

        Raises:
            CallEnded: CallFailed, CallRejected, CallCanceled, CallInterrupted, CallTimedOut.
            RemoteError: AgentUnreachable, CallRefused and others; what was begun is being cancelled.
            ConfigError, TypeError, ValueError: an argument can't be used as it is.
        """
        if self.request.called_directly:
            raise TypeError(f"{self.name} is a step: call.s(…) or call.delay(…); without Celery there is RemoteAgent")
        self._checked(url, (), {"timeout": timeout, "unreachable_for": unreachable_for, "on_interrupt": on_interrupt})
        so_far = Progress.read(progress, now := SYSTEM_CLOCK.time())
        over = timeout is not None and now - so_far.began > timeout
        self._stop_if_ended(url, so_far)
        if so_far.is_held(now) and not over:
            self._again(content, so_far, now, timeout)
        remote = find(self.remotes, url)
        try:
            if so_far.task_id:
                result, so_far = self._looked(remote, so_far)
            else:
                result, so_far = self._sent(
                    remote, message_of(content, self.message_id_of(self.request.id), task_id, context_id), so_far
                )
        except (AgentUnreachable, InternalError) as e:
            so_far = so_far.missed(now, getattr(e, "retry_after", None), unreachable_for=unreachable_for)
            if now - cast(float, so_far.failing_since) > unreachable_for:
                self._give_up(url, so_far)
                raise AgentUnreachable(f"{e} (for {unreachable_for:g} s)") from None
            result = Result()
        except (A2AError, RemoteError) as e:
            self._give_up(url, so_far)
            if isinstance(e, RemoteError):
                raise
            raise CallRefused(f"{remote.url} refuses: {type(e).__name__}: {e}") from None
        if result.stop_reason is None and not over:
            self._again(content, so_far, now, timeout)
        if result.stop_reason is None:
            self._give_up(url, so_far)
            raise ended(CallTimedOut, remote.url, f"not done within {timeout:g} s", result)
        self._stop_if_ended(url, so_far)  # a copy was quicker
        is_wanted = result.stop_reason == "interrupt" and on_interrupt == "return"
        if not is_wanted and (error := ending_of(remote.url, result)):
            raise error
        return data_of(result)

    @staticmethod
    def message_id_of(celery_id: str) -> str:
        """The id of a step's message, the same whenever and wherever it is run."""
        return str(uuid5(NAMESPACE_URL, f"a2a.call:{celery_id}"))

    def receiver(self) -> Any:
        """The ASGI application to which agents post that a step is to look at its task; see `Webhook`.

        Raises:
            ConfigError: `call_task` was given no webhook.
        """
        if self.webhook is None:
            raise ConfigError("there is nothing to receive: give call_task a webhook=Webhook(url, secret)")
        return self.webhook.app(self.app)

    def _sent(self, remote: Remote, message: Message, so_far: Progress) -> tuple[Result, Progress]:
        calls = self.calls.here()
        push = None if self.webhook is None else self.webhook.config(self.request.id)
        told = push is not None

        async def send() -> Result:
            nonlocal told
            async with calls.agent(remote) as agent:
                try:
                    return await agent.submit(message, push=push)
                except PushNotificationNotSupportedError:
                    told = False
                    return await agent.submit(message)
                except (InvalidParamsError, UnsupportedOperationError):
                    # a task that this very message has ended takes no more: a copy of this step has sent it
                    known = await agent.get(message.task_id) if message.task_id else Result()
                    if _has(known, message):
                        return known
                    raise

        result = calls.run(send())
        if result.stop_reason is None and not result.task_id:
            raise AnswerUnreadable(f"{remote.url} answered with neither a task nor a message")
        return result, so_far.reached(result.task_id, told=told)

    def _looked(self, remote: Remote, so_far: Progress) -> tuple[Result, Progress]:
        calls = self.calls.here()

        async def look() -> Result:
            async with calls.agent(remote) as agent:
                return await agent.get(so_far.task_id)

        return calls.run(look()), so_far.reached(so_far.task_id, told=so_far.told)

    def _again(self, content: tuple[Any, ...], so_far: Progress, now: float, timeout: float | None) -> NoReturn:
        """Looks again later. What was sent needs not be sent again, so it leaves the arguments."""
        free = self.calls.here().pace.wait(now)
        visibility = self.app.conf.broker_transport_options.get("visibility_timeout")
        pause = so_far.pause(now, timeout=timeout, visibility=visibility, at_least=free)
        kwargs = {**self.request.kwargs, "progress": so_far.to_dict()}
        if self.request.is_eager:  # task_always_eager, in somebody's tests: there the retry is made at once
            time.sleep(pause)
        try:
            raise self.retry(args=() if so_far.task_id else content, kwargs=kwargs, countdown=pause)
        except Reject as e:
            if isinstance(e.reason, OperationalError):  # the broker is away: this message is all there is of the step
                raise Reject(e.reason, requeue=True) from e
            raise e.reason from None

    def _stop_if_ended(self, url: str, so_far: Progress) -> None:
        """Ends this run if the step has ended: a copy of its message was quicker, or it was revoked where this worker
        did not hear of it."""
        state = self._state_in_backend()
        if state == states.REVOKED:
            self._give_up(url, so_far)
        if state in states.READY_STATES:
            logger.info("%s[%s] has ended already: %s", self.name, self.request.id, state)
            raise Ignore

    def _state_in_backend(self) -> Any:
        if self.request.is_eager or self.backend.as_uri() in ("disabled://", "rpc://"):
            return states.PENDING
        try:
            return self.backend.get_state(self.request.id)
        except Exception as e:
            logger.warning("%s[%s]: whether it has ended is not known: %s", self.name, self.request.id, e)
            return states.PENDING

    def _give_up(self, url: str, so_far: Progress) -> None:
        if so_far.task_id:
            cancel_there(self.canceling, self.request.delivery_info, url=url, task_id=so_far.task_id)

    def _checked(self, url: str, content: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        """`content` as it may travel.

        Raises:
            ConfigError, TypeError, ValueError: something can't be used as it is.
        """
        find(self.remotes, url)
        on_interrupt = options.get("on_interrupt", "raise")
        if on_interrupt not in ON_INTERRUPT:
            raise ValueError(f"on_interrupt={on_interrupt!r}: one of {', '.join(map(repr, ON_INTERRUPT))}")
        for name in ("timeout", "unreachable_for"):
            value = options.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or value <= 0):
                raise ValueError(f"{name}={value!r}: seconds, more than 0")
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"{self.name} has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(_OPTIONS))}")
        return [portable(one) for one in content]


def _has(result: Result, message: Message) -> bool:
    """Whether the task has had `message`."""
    history = result.raw.history if isinstance(result.raw, A2ATask) else ()
    return any(one.message_id == message.message_id for one in history)


_OPTIONS = {"task_id", "context_id", "timeout", "unreachable_for", "on_interrupt"}


def call_task(
    app: Celery, *, remotes: Mapping[str, Remote | str] | None = None, webhook: Webhook | None = None, **options: Any
) -> CallTask:
    """Makes `a2a.call` a task of `app`, which needs no agents and no store of its own.

    `remotes` are agents by name, with their credentials, which stay where this is called. `webhook` is where agents
    tell that a task has ended; None: steps ask again and again. `options` are Celery's for a task (queue, rate_limit,
    time_limit …).

    Raises:
        ConfigError: the app has one already, or a remote can't be used.
    """
    if NAME in app._tasks:
        raise ConfigError(f"the Celery app {app.main!r} has an {NAME} already: call_task is for its module, once")
    named = {name: Remote(one) if isinstance(one, str) else one for name, one in (remotes or {}).items()}
    calls = CallsPerProcess()
    canceling = cancel_task(app, named, calls, options)
    attributes = {"remotes": named, "webhook": webhook, "calls": calls, "canceling": canceling}
    made = type("CallTask", (CallTask,), {**options, **attributes})()
    watch_for_revoked(app)
    return cast(CallTask, app.register_task(made))
