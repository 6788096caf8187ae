"""Celery task `a2a.call`, a canvas step that a remote agent executes without occupying a worker slot.

The first run sends the message. The message's id is derived from the Celery task's id, so a redelivered run sends the
same message. Celery then retries the step until the remote task ends, with the remote task's id in the arguments, so
that chain, group, chord and link_error work as for any Celery task. A step that waits is a Celery message with an ETA.
"""

from __future__ import annotations

import asyncio
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
    UnsupportedOperationError,
)
from celery import Celery, Task, states
from celery.canvas import Signature
from celery.exceptions import Ignore, Reject
from kombu.exceptions import OperationalError

from ...clock import SYSTEM_CLOCK
from ...current_run import CURRENT_RUN
from ...errors import ConfigError
from ...integrations.celery import is_registered
from ...lifecycle.references import RunRef
from ...telemetry.tracing import trace_to_keep
from ..connection.transports import tenant_error, trace_of_current_run
from ..errors import AgentUnreachable, CallRefused, InvalidResponse, RemoteError
from ..result import Result
from .cancel_task import PUBLISH_TIMEOUT, publish_cancel, register_cancel_task
from .client_loop import ClientLoops, Remote, find_remote
from .content import CallTimedOut, call_error, error_of, message_of, result_data, to_portable
from .progress import CallProgress, question_digest
from .webhook import Webhook, submit_with_webhook
from .worker import install_revocation_monitor

logger = logging.getLogger(__name__)

NAME = "a2a.call"
DAY = 24 * 3600.0
UNREACHABLE_FOR = 600.0
ON_INTERRUPT = ("raise", "return")

SURVIVES_PARENT = "a2a_survives_parent"
"""Header of a step's message, true if the remote task is not cancelled with the task whose agent published the step."""


class CallTask(Task):  # type: ignore[misc]
    """Celery task `a2a.call`; see `call_task`. A step has these options:

    * `task_id`: Id of a task that waits for the message, or None to start a new task.
    * `context_id`: Id of the conversation of a new task, or None to let the agent choose the id.
    * `tenant`: Tenant of the remote task, or None for the tenant of the remote.
    * `timeout`: Maximum duration in seconds, from the step's first run to the end of the remote task, or None for no
      limit. The default is one day.
    * `unreachable_for`: Seconds for which the agent may be unreachable without interruption. The default is 10 minutes.
    * `on_interrupt`: "raise" to raise CallInterrupted when the agent asks a question, or "return" to return the
      question as the result.
    """

    name = NAME
    # A duplicate of the first run sends the message again with the same id, and an idempotent agent accepts it once.
    acks_late = True
    reject_on_worker_lost = True
    max_retries = None
    ignore_result = False
    Request = "a2a_celery.client.calling.worker:CallRequest"

    remotes: Mapping[str, Remote] = {}
    webhook: Webhook | None = None
    loops: ClientLoops
    canceler: Task

    def s(self, url: str, *content: Any, **options: Any) -> Signature:
        """Return a step that sends `content`, followed by the result of the previous step, to an agent.

        Args:
            url: Address of the agent, or the name of a remote.
            content: Text, bytes, JSON data, parts, messages or results.
            options: Options of the step; see `CallTask`.

        Raises:
            ConfigError: `url` is invalid or unknown.
            TypeError: A message cannot carry the content, or an option is unknown.
            ValueError: An option is out of range.
        """
        # The previous result becomes the first argument. Reversed, it is the last content; see `message_of`.
        step: Signature = super().s(*reversed(self._check(url, content, options)), url=url, **options)
        return step

    def si(self, url: str, *content: Any, **options: Any) -> Signature:
        """Return a step that ignores the result of the previous step; see `s`."""
        return super().si(*reversed(self._check(url, content, options)), url=url, **options)

    def delay(self, url: str, *content: Any, **options: Any) -> Any:
        """Publish a step; see `s`."""
        return self.s(url, *content, **options).apply_async()

    def apply_async(self, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
        """Publish the step with Celery's options. `args` are the contents of the message in reverse order.

        If the code of an A2A agent publishes a step, the step is revoked when the agent's task is cancelled, fails, is
        rejected or is retried, unless the option `cancel_with_parent` is False.

        Raises:
            TypeError: `url` is not a keyword argument, so a chain could replace the URL with the previous result.
        """
        if not kwargs or "url" not in kwargs:
            raise TypeError(
                f"{self.name}: pass the URL by name, kwargs={{'url': …}}, or create the step with .s(url, …)"
            )
        cancel_with_parent = options.pop("cancel_with_parent", True)
        run = CURRENT_RUN.get()
        headers = trace_of_current_run() | (options.pop("headers", None) or {})
        if not cancel_with_parent:
            headers[SURVIVES_PARENT] = True
        if run is not None and not options.get("root_id"):
            options["root_id"] = run.name  # the root of all steps of a canvas
        step = super().apply_async(args, kwargs, *rest, headers=headers, **options)
        if run is not None and cancel_with_parent:
            run.add(f"step {step.id}", lambda: asyncio.to_thread(step.revoke, terminate=True))
        return step

    def run(
        self,
        *content: Any,
        url: str,
        task_id: str | None = None,
        context_id: str | None = None,
        tenant: str | None = None,
        timeout: float | None = DAY,
        unreachable_for: float = UNREACHABLE_FOR,
        on_interrupt: str = "raise",
        progress: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Execute one run of the step. For the arguments, see `CallTask` and `s`; `progress` is internal.

        Returns:
            The result in the format of `Result.to_dict`, without the task's history.

        Raises:
            CallEnded: The remote task did not complete; see its subclasses.
            RemoteError: The agent is unreachable or refuses the call. A task that was already started is cancelled.
            ConfigError, TypeError, ValueError: An argument is invalid; see `s`.
        """
        if self.request.called_directly:
            raise TypeError(f"{self.name} is a step: use call.s(…) or call.delay(…), or RemoteAgent without Celery")
        options = {"timeout": timeout, "unreachable_for": unreachable_for, "on_interrupt": on_interrupt}
        self._check(url, (), {**options, "tenant": tenant})
        step = CallProgress.read(progress, now := SYSTEM_CLOCK.time())
        over = timeout is not None and now - step.began > timeout
        self._stop_if_ended(url, step)
        if step.is_deferred(now) and not over:
            self._retry_later(content, step, now, timeout)
        remote = find_remote(self.remotes, url)
        try:
            if step.task_id:
                result, step = self._poll(remote, step)
            else:
                result, step = self._send(remote, self._message(content, task_id or "", context_id or ""), step)
        except (AgentUnreachable, InternalError) as e:
            step = step.missed(now, getattr(e, "retry_after", None), unreachable_for=unreachable_for)
            if now - cast(float, step.failing_since) > unreachable_for:
                self._give_up(url, step)
                raise AgentUnreachable(f"{e} (for {unreachable_for:g} s)") from None
            result = Result()
        except (A2AError, RemoteError) as e:
            self._give_up(url, step)
            if isinstance(e, RemoteError):
                raise
            raise CallRefused(f"{remote.url} refused the call: {type(e).__name__}: {e}") from None
        if not step.is_over(result):
            if not over:
                self._retry_later(content, step, now, timeout)
            self._give_up(url, step)
            raise call_error(CallTimedOut, remote.url, f"not done within {timeout:g} s", result)
        self._stop_if_ended(url, step)  # a duplicate may have been faster
        is_wanted = result.stop_reason == "interrupt" and on_interrupt == "return"
        if not is_wanted and (error := error_of(remote.url, result)):
            raise error
        return result_data(result)

    @staticmethod
    def message_id_of(celery_id: str) -> str:
        """Return the id of a step's message, derived from its Celery id."""
        return str(uuid5(NAMESPACE_URL, f"a2a.call:{celery_id}"))

    def receiver(self) -> Any:
        """Return the ASGI application that receives the agents' notifications; see `Webhook`.

        Raises:
            ConfigError: `call_task` has no webhook.
        """
        if self.webhook is None:
            raise ConfigError("no webhook is configured: pass webhook=Webhook(url, secret) to call_task")
        return self.webhook.app(self.app)

    def _message(self, content: tuple[Any, ...], task_id: str, context_id: str) -> Message:
        """Return the message that the step sends.

        If an agent has published the canvas of the step, the message contains the id of the agent's task as the parent.
        """
        root = RunRef.of(str(self.request.root_id))
        return message_of(
            content,
            self.message_id_of(self.request.id),
            task_id,
            context_id,
            parent_id="" if root is None else root.task_id,
            cancel_with_parent=not getattr(self.request, SURVIVES_PARENT, False),
        )

    def _send(self, remote: Remote, message: Message, progress: CallProgress) -> tuple[Result, CallProgress]:
        loop, celery_id, tenant = self.loops.current(), self.request.id, self._tenant
        has_webhook = self.webhook is not None
        question: str | None = None

        trace = trace_to_keep({str(name): str(value) for name, value in (self.request.headers or {}).items()})

        async def send() -> Result:
            nonlocal has_webhook, question
            async with loop.agent(remote, trace, tenant=tenant) as agent:
                if message.task_id:
                    current = await agent.get(message.task_id)
                    if _has_message(current, message):
                        return current  # a duplicate of this step has already sent the message
                    question = question_digest(current)
                try:
                    result, has_webhook = await submit_with_webhook(agent, message, self.webhook, celery_id)
                    return result
                except (InvalidParamsError, UnsupportedOperationError):
                    # The task may refuse the message because it has ended. If its history contains the message, a
                    # duplicate of this step has already sent it.
                    current = await agent.get(message.task_id) if message.task_id else Result()
                    if _has_message(current, message):
                        return current
                    raise

        result = loop.run(send())
        if result.stop_reason is None and not result.task_id:
            raise InvalidResponse(f"{remote.url} responded with neither a task nor a message")
        return result, progress.reached(result.task_id, has_webhook=has_webhook, question=question)

    def _poll(self, remote: Remote, progress: CallProgress) -> tuple[Result, CallProgress]:
        loop, tenant = self.loops.current(), self._tenant

        async def poll() -> Result:
            async with loop.agent(remote, tenant=tenant) as agent:
                return await agent.get(progress.task_id)

        return loop.run(poll()), progress.reached(progress.task_id, has_webhook=progress.has_webhook)

    def _retry_later(
        self, content: tuple[Any, ...], progress: CallProgress, now: float, timeout: float | None
    ) -> NoReturn:
        """Retry the step after a pause. Content that was already sent is removed from the arguments."""
        free = self.loops.current().poll_limiter.wait()
        visibility = self.app.conf.broker_transport_options.get("visibility_timeout")
        pause = progress.pause(now, timeout=timeout, visibility=visibility, at_least=free)
        kwargs = {**self.request.kwargs, "progress": progress.to_dict()}
        if self.request.is_eager:  # task_always_eager, which tests use: Celery executes the retry immediately
            time.sleep(pause)
        try:
            raise self.retry(args=() if progress.task_id else content, kwargs=kwargs, countdown=pause)
        except Reject as e:
            if isinstance(
                e.reason, OperationalError
            ):  # the broker is unavailable, and this message is the only copy of the step
                raise Reject(e.reason, requeue=True) from e
            raise e.reason from None

    def _stop_if_ended(self, url: str, progress: CallProgress) -> None:
        """Stop this run if the step has already ended. A duplicate may have been faster, or this worker may have missed
        the revocation."""
        state = self._state_in_backend()
        if state == states.REVOKED:
            self._give_up(url, progress)
        if state in states.READY_STATES:
            logger.info("%s[%s] has already ended: %s", self.name, self.request.id, state)
            raise Ignore

    def _state_in_backend(self) -> Any:
        if self.request.is_eager or self.backend.as_uri() in ("disabled://", "rpc://"):
            return states.PENDING
        try:
            return self.backend.get_state(self.request.id)
        except Exception as e:
            logger.warning("%s[%s]: could not read its state: %s", self.name, self.request.id, e)
            return states.PENDING

    def _give_up(self, url: str, progress: CallProgress) -> None:
        if progress.task_id:
            # A prefork child may exit after the step, for example because of worker_max_tasks_per_child.
            info = self.request.delivery_info
            tenant = {"tenant": self._tenant} if self._tenant else {}
            publish_cancel(self.canceler, info, max_wait=PUBLISH_TIMEOUT, url=url, task_id=progress.task_id, **tenant)

    @property
    def _tenant(self) -> str:
        return str((self.request.kwargs or {}).get("tenant") or "")

    def _check(self, url: str, content: tuple[Any, ...], options: dict[str, Any]) -> list[Any]:
        """Validate the arguments and return `content` as a list of JSON values for a Celery message.

        Raises:
            ConfigError: `url` is invalid or unknown.
            TypeError: A message cannot carry the content, or an option is unknown.
            ValueError: An option is out of range.
        """
        find_remote(self.remotes, url)
        if error := tenant_error(options.get("tenant", "")):
            raise ConfigError(error)
        on_interrupt = options.get("on_interrupt", "raise")
        if on_interrupt not in ON_INTERRUPT:
            raise ValueError(f"on_interrupt={on_interrupt!r}: must be {' or '.join(map(repr, ON_INTERRUPT))}")
        for name in ("timeout", "unreachable_for"):
            value = options.get(name, DAY)
            if value is None and name == "timeout":
                continue
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
                raise ValueError(f"{name}={value!r}: must be a number of seconds above 0")
        unknown = options.keys() - _OPTIONS
        if unknown:
            raise TypeError(f"{self.name} has no {', '.join(sorted(unknown))}; it has {', '.join(sorted(_OPTIONS))}")
        return [to_portable(item) for item in content]


def _has_message(result: Result, message: Message) -> bool:
    history = result.raw.history if isinstance(result.raw, A2ATask) else ()
    return any(history_message.message_id == message.message_id for history_message in history)


_OPTIONS = {"task_id", "context_id", "tenant", "timeout", "unreachable_for", "on_interrupt"}


def call_task(
    app: Celery, *, remotes: Mapping[str, Remote | str] | None = None, webhook: Webhook | None = None, **options: Any
) -> CallTask:
    """Register the Celery task `a2a.call` with `app`. The app needs no agents and no store.

    Args:
        app: Celery app.
        remotes: Agents by name, each as a URL or as a `Remote` with credentials. The credentials stay in this process.
        webhook: Webhook that wakes a step when its remote task is terminal or interrupted, or None if steps only poll.
        options: Celery's task options (queue, rate_limit, time_limit …).

    Raises:
        ConfigError: `a2a.call` is already registered with the app, or a remote is invalid.
    """
    if is_registered(app, NAME):
        raise ConfigError(
            f"the Celery app {app.main!r} already has the task {NAME}: call call_task once, in the app's module"
        )
    by_name = {name: Remote(remote) if isinstance(remote, str) else remote for name, remote in (remotes or {}).items()}
    loops = ClientLoops()
    canceler = register_cancel_task(app, by_name, loops, options, webhook)
    attributes = {"remotes": by_name, "webhook": webhook, "loops": loops, "canceler": canceler}
    task = type("CallTask", (CallTask,), {**options, **attributes})()
    install_revocation_monitor(app)
    return cast(CallTask, app.register_task(task))
