"""Acceptance of messages: validate the message, route it, write it to the store, then publish the run. An accepted
message is never lost.

If broker and store are one Redis server and `BrokerMessages` is enabled, the script that writes the message also pushes
the run to its queue. Otherwise, the run is published in the background, so that the request does not wait for the
broker. Published runs are recorded in batches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import Message, SendMessageRequest, Task
from a2a.utils.errors import A2AError, UnsupportedOperationError

from ...acceptance.errors import invalid, not_found
from ...acceptance.new_tasks import BrokerMessages, NewTasks, built, idempotency_key, run_options, with_ids
from ...agents import Agent
from ...caller import Caller
from ...clock import SYSTEM_CLOCK, Clock
from ...dispatch import Call, Publisher, RunOptions
from ...lifecycle import EventId, is_terminal
from ...settings import Settings
from ...store import AsyncStore, Keys, Operation, Scope
from ...store.log.pubsub import LogFollower, LogSignal
from ...store.runs.commands import RunRef
from ...store.runs.publication import PublicationRecorder
from ...store.tasks import commands as tasks
from ...store.tasks import results as answers
from ...store.webhooks.push_configs import NewPushConfig
from .limits import OwnerLimits
from .push_configs import PushConfigs, too_many_configs
from .structured_answers import messages_with_arguments, require_fitting_answer
from .task_reader import StoredTask, TaskReader, closed_task_error

logger = logging.getLogger(__name__)


class BackgroundPublisher:
    """Background publisher that also records the published runs."""

    def __init__(
        self,
        publisher: Publisher,
        store: AsyncStore,
        keys: Keys,
        settings: Settings,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        self.publisher = publisher
        self.messages = BrokerMessages(publisher, settings, clock)
        self._settings = settings
        self._recorder = PublicationRecorder(store, keys, clock)

    def publish(self, agent: str, ref: RunRef, options: RunOptions) -> None:
        """Publish a run in the background. A run that is scheduled for much later is published by a watcher."""
        now = self._clock.now()
        if options.publish_delay(now):
            return
        delay_us = options.republish_in(now, self._settings)

        on_published = partial(self._recorder.add, ref, delay_us)
        self.publisher.publish_soon(agent, ref.task_id, ref.run, options.to_json(), on_published)

    async def aclose(self) -> None:
        """Record the remaining published runs."""
        await self._recorder.aclose()


@dataclass(frozen=True, slots=True)
class AcceptedMessage:
    """Accepted message with its task as of the event `newest`.

    Attributes:
        since: Event after which the log contains the message's turn.
        preceding_turns: Number of turns that start after `since` and before the message's own turn; see `TurnWatch`.
        new: True if the message began a run. The log ended at `newest` when the message was stored.
        is_resolved: False if `task` has unresolved blob references. Clients must not receive such a task; see
            `with_full_task`.
    """

    task: Task
    newest: EventId
    since: EventId
    preceding_turns: int
    new: bool = False
    is_resolved: bool = True

    @property
    def is_first(self) -> bool:
        """True if the message created the task."""
        return self.since.version == 1 and not self.preceding_turns


class MessageAcceptor:
    """Acceptor of messages for one agent, which validates and stores each message and publishes its run."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        follower: LogFollower,
        publisher: BackgroundPublisher,
        push_configs: PushConfigs | None,
        limits: OwnerLimits,
        task_reader: TaskReader,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._follower = follower
        self._store = follower.store
        self._keys = follower.keys
        self._publisher = publisher
        self._push_configs = push_configs
        self._limits = limits
        self._task_reader = task_reader
        self._new_tasks = NewTasks(agent, settings, follower.keys)

    @asynccontextmanager
    async def accepting(
        self, params: SendMessageRequest, context: ServerCallContext, scope: Scope, *, final_only: bool = False
    ) -> AsyncGenerator[tuple[AcceptedMessage, LogSignal], None]:
        """Accept a message and subscribe to its task.

        Yields:
            The accepted message, and a `LogSignal` that is notified of every later write to its task or, with
            `final_only`, only of interrupted and terminal states.
        """
        task_id = params.message.task_id or str(uuid4())
        reply_channel = None if params.message.task_id else self._follower.reply_channel(final_only=final_only)
        async with AsyncExitStack() as stack:
            # subscribe before the write, so that no event is missed
            signal = await stack.enter_async_context(
                self._follower.listen(task_id, reply_channel, final_only=final_only)
            )
            accepted_message = await self._accept(params, context, scope, task_id, reply_channel)
            if accepted_message.task.id != task_id:
                signal = await stack.enter_async_context(
                    self._follower.listen(accepted_message.task.id, final_only=final_only)
                )
            accepted_and_signal = [(accepted_message, signal)]
            del params, context, accepted_message  # a long wait must not keep the request in memory
            yield accepted_and_signal.pop()

    async def accept(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> AcceptedMessage:
        """Accept a message and resolve the blob references of its task."""
        return await with_full_task(self._follower, await self._accept(params, context, scope))

    async def _accept(
        self,
        params: SendMessageRequest,
        context: ServerCallContext,
        scope: Scope,
        task_id: str = "",
        reply_channel: tasks.ReplyChannel | None = None,
    ) -> AcceptedMessage:
        """Store the message and publish its run. A message without a task id creates a task with the id `task_id`, or
        with a new id if `task_id` is "".

        If the message was already accepted within the agent's `idempotency_window`, the existing task is returned.

        Raises:
            A2AError: The message is invalid or exceeds a limit, or the task cannot accept the message.
        """
        if params.message.task_id:
            return await self._continue(params, context, scope)
        task_id = task_id or str(uuid4())
        new = self._new_tasks.of(
            params,
            Caller.of(context),
            scope,
            task_id,
            push=await self._push(params, context, task_id),
            limits=await self._limits.task_limits(),
            reply_channel=reply_channel,
            messages=self._publisher.messages,
        )
        answer = await self._store.run(await built(params, new.create))
        match answer:
            case answers.Created(task, newest, is_blocked, is_published):
                if not is_blocked and not is_published:
                    self._publish(RunRef(task_id, 1), new.options, was_prepared=new.has_message)
                return AcceptedMessage(task, newest, since=newest, preceding_turns=0, new=True)
            case answers.Known():
                return await self._accepted_before(answer, scope)
            case answers.Limited():
                raise self._limits.limit_error(self._agent.name, answer)
            case answers.Conflict() | answers.TooDeep() | answers.WaitsForItself() | answers.TaskIdConflict():
                raise self._new_tasks.refusal(answer)
            case answers.TickSkipped() | answers.TickRepeated():
                raise AssertionError("a client's message is not a tick of a schedule")

    async def _accepted_before(self, repeat: answers.Known, scope: Scope) -> AcceptedMessage:
        stored_task = await self._task_reader.read(scope, repeat.task_id)
        return AcceptedMessage(
            stored_task.task, stored_task.newest, since=EventId(repeat.version), preceding_turns=repeat.preceding_turns
        )

    async def _continue(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> AcceptedMessage:
        task_id, next_run = params.message.task_id, None
        if self._publisher.messages.is_enabled:
            reading_run = self._store.run(tasks.read_next_run(self._keys, task_id))
            stored_task, next_run = await asyncio.gather(self._read(scope, task_id), reading_run)  # one round trip
        else:
            stored_task = await self._read(scope, task_id)
        task = stored_task.task
        if stored_task.archived:
            raise closed_task_error(task_id, task.status.state)
        request = with_ids(params, context.tenant, task_id, task.context_id)
        caller = Caller.of(context)
        options = run_options(self._agent, request, caller, self._next_call(task, request.message))
        message = None
        if next_run is not None:
            message = self._publisher.messages.of(self._agent.name, RunRef(task_id, next_run), options)
        answer = await self._add_message(
            request,
            partial(
                tasks.continue_task,
                self._keys,
                scope,
                task_id,
                request,
                params.message.context_id,
                caller=caller.to_json(),
                nonce=uuid4().hex,
                options=options.to_json(),
                idempotency_key=idempotency_key(self._agent, params),
                push=await self._push(params, context, task_id),
                limits=await self._limits.task_limits(),
                max_bytes=self._settings.task_max_bytes,
                on_message=self._agent.on_message,
                broker_message=message,
            ),
        )
        match answer:
            case answers.Missing():
                raise await self._task_reader.closed_task_error(scope, task_id)
            case answers.WrongContext(context_id):
                text = f"The task belongs to context {context_id!r}: send this context id or none."
                raise invalid("message.context_id", text)
            case answers.Ended(state):
                raise closed_task_error(task_id, state)
            case answers.Full() | answers.Working() | answers.TooLarge() | answers.TooManyConfigs():
                raise _refusal(answer, task_id, self._settings.task_max_bytes)
            case answers.Begun(run, task, newest, is_blocked, is_resolved, is_published):
                if not is_blocked and not is_published:
                    self._publish(RunRef(task_id, run), options, was_prepared=message is not None and run == next_run)
                return AcceptedMessage(task, newest, since=newest, preceding_turns=0, new=True, is_resolved=is_resolved)
            case answers.DeliveredToRun(task, newest, is_resolved):
                return AcceptedMessage(task, newest, since=newest, preceding_turns=0, is_resolved=is_resolved)
            case answers.Waiting(place, task, newest, is_resolved):
                return AcceptedMessage(task, newest, since=newest, preceding_turns=place, is_resolved=is_resolved)
            case answers.Known():
                return await self._accepted_before(answer, scope)
            case answers.Conflict():
                raise self._new_tasks.refusal(answer)
            case answers.Limited():
                raise self._limits.limit_error(self._agent.name, answer)

    async def _read(self, scope: Scope, task_id: str) -> StoredTask:
        is_call = self._new_tasks.is_call
        length = None if is_call else 0  # a plain Celery task is called with all messages of the client
        return await self._task_reader.read(
            scope, task_id, history_length=length, artifacts=False, resolve_blobs=is_call
        )

    def _publish(self, ref: RunRef, options: RunOptions, *, was_prepared: bool) -> None:
        """Publish a run that the store has not pushed to a queue. If `was_prepared`, the store had received the Celery
        message of the run."""
        if was_prepared:
            self._publisher.messages.record_refusal()
        self._publisher.publish(self._agent.name, ref, options)

    async def _add_message(
        self, request: SendMessageRequest, operation: Callable[..., Operation[answers.Continued]]
    ) -> answers.Answered:
        """Store the message of `request`. An answer to a question with a schema is validated first.

        Raises:
            InvalidParamsError: The message does not fit the open question. The message is not stored.
        """
        answer = await self._store.run(await built(request, operation))
        while isinstance(answer, answers.OpenQuestion):
            await require_fitting_answer(answer.schema, request.message)
            answer = await self._store.run(await built(request, partial(operation, answered_run=answer.run)))
        return answer

    async def _push(self, params: SendMessageRequest, context: ServerCallContext, task_id: str) -> NewPushConfig | None:
        """Return the push notification config of a message, or None if the message has none."""
        return (
            None if self._push_configs is None else await self._push_configs.config_of_message(params, context, task_id)
        )

    def _next_call(self, task: Task, message: Message) -> Call | None:
        """Return the call to the agent's plain Celery task with the messages of `task` and the new message, or None for
        a terminal task or any other kind of agent.

        With an idempotency window, a copy of the new message in `task` is used instead of the new message. The call for
        a repeated message is therefore as valid as the call for its first copy.
        """
        if is_terminal(task.status.state):
            return None
        is_repeat = self._agent.idempotency_window is not None and any(
            earlier.message_id == message.message_id and earlier.parts == message.parts for earlier in task.history
        )
        return self._new_tasks.call_of(messages_with_arguments(task, None if is_repeat else message))


async def with_full_task(follower: LogFollower, accepted_message: AcceptedMessage) -> AcceptedMessage:
    """Return `accepted_message` with its blob references resolved. The task may have newer events than
    `accepted_message`.

    Raises:
        StoreUnavailable: The task cannot be read.
        TaskNotFoundError: The task no longer exists.
    """
    if accepted_message.is_resolved:
        return accepted_message
    snapshot = await follower.store.run(tasks.read_task(follower.keys, None, accepted_message.task.id))
    if snapshot is None:
        raise not_found(accepted_message.task.id)
    return replace(accepted_message, task=snapshot[0], newest=snapshot[1], is_resolved=True)


def _refusal(
    answer: answers.Full | answers.Working | answers.TooLarge | answers.TooManyConfigs,
    task_id: str,
    max_bytes: int | None,
) -> A2AError:
    """Return the error for a message that the task cannot accept."""
    match answer:
        case answers.TooManyConfigs():
            return too_many_configs(task_id)
        case answers.TooLarge():
            return _too_large(task_id, max_bytes)
        case answers.Full():
            text = f"{tasks.MAX_WAITING_TURNS} messages wait for this task: send this message again later"
        case answers.Working():
            text = (
                "The task is working and accepts no message: send this message when the task asks for input, or "
                "without a task id, with this task in referenceTaskIds"
            )
    return UnsupportedOperationError(text, data={"taskId": task_id})


def _too_large(task_id: str, max_bytes: int | None) -> UnsupportedOperationError:
    text = (
        f"This message would make the task larger than {max_bytes} bytes: send the message without a task id, in the "
        "same context, to create a new task"
    )
    return UnsupportedOperationError(text, data={"taskId": task_id})
