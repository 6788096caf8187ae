"""Taking a message in: into the store first, then to the broker; from there on nothing is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from uuid import uuid4

from a2a.server.context import ServerCallContext
from a2a.types import Message, Role, SendMessageRequest, Task
from a2a.utils.errors import InvalidParamsError, UnsupportedOperationError

from ..agents import Agent
from ..caller import Caller
from ..config import Settings
from ..dispatch import BadCall, Call, CallSignature
from ..lifecycle import is_terminal
from ..store import Scope, answers, tasks
from ..store.follow import LogFollower
from ..store.push_configs import NewPushConfig
from ..store.runs import RunRef
from ..store.wake import Bell
from .faults import invalid, not_found
from .handing_over import HandingOver
from .kept import KeptTasks, takes_no_more
from .limits import Limits
from .push_configs import PushConfigs, too_many
from .repeats import once
from .routing import run_options


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that was accepted, and its task as of `version`.

    Its turn is in the log behind version `since`, and `ahead` turns begin before it there (see TurnWatch). `new` says
    that the log ends there. A task that is not `whole` is for no one to see: see `in_full`.
    """

    task: Task
    version: int
    since: int
    ahead: int
    new: bool = False
    whole: bool = True

    @property
    def is_first(self) -> bool:
        """Whether it is the message that made the task."""
        return self.since == 1 and not self.ahead


class Intake:
    """Takes messages for one agent."""

    def __init__(
        self,
        agent: Agent,
        settings: Settings,
        follower: LogFollower,
        handing_over: HandingOver,
        push_configs: PushConfigs | None,
        limits: Limits,
        kept: KeptTasks,
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._follower = follower
        self._store = follower.store
        self._keys = follower.keys
        self._handing_over = handing_over
        self._push_configs = push_configs
        self._limits = limits
        self._kept = kept
        self._signature = CallSignature.of(agent.code) if agent.kind == "task" else None

    @asynccontextmanager
    async def accepting(
        self, params: SendMessageRequest, context: ServerCallContext, scope: Scope, *, stops: bool = False
    ) -> AsyncGenerator[tuple[Sent, Bell], None]:
        """`accept`, with a bell that rings for everything that is written to the message's task from here on, or for
        what `stops` it alone."""
        task_id = params.message.task_id or str(uuid4())
        waker = None if params.message.task_id else self._follower.waker(stops=stops)
        async with AsyncExitStack() as stack:
            # first: what is written from here on rings
            bell = await stack.enter_async_context(self._follower.listen(task_id, waker, stops=stops))
            sent = await self._accept(params, context, scope, task_id, waker)
            if sent.task.id != task_id:
                bell = await stack.enter_async_context(self._follower.listen(sent.task.id, stops=stops))
            given = [(sent, bell)]
            del params, context, sent  # whoever waits for long, waits here
            yield given.pop()

    async def accept(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> Sent:
        """See `_accept`; gives the task to be shown."""
        return await in_full(self._follower, await self._accept(params, context, scope))

    async def _accept(
        self,
        params: SendMessageRequest,
        context: ServerCallContext,
        scope: Scope,
        task_id: str = "",
        waker: tasks.Waker | None = None,
    ) -> Sent:
        """Stores the message, as a new task (`task_id`, if given) unless it names one, and has its run published.

        A message that was accepted before, within the agent's `idempotency_window`, is only found again.

        Raises:
            A2AError: the task it names can't take it.
        """
        if params.message.task_id:
            return await self._continue(params, context, scope)
        task_id = task_id or str(uuid4())
        request = _with_ids(params, task_id, params.message.context_id or str(uuid4()))
        caller = Caller.of(context)
        options = run_options(self._agent, request, caller, self._call([request.message]))
        answer = await self._store.run(
            tasks.create_task(
                self._keys,
                scope,
                task_id,
                request.message.context_id,
                request,
                caller=caller.to_json(),
                retention=self._settings.retention,
                options=options.to_json(),
                once=once(self._agent, params),
                push=await self._push(params, context, task_id),
                one_by_one=self._agent.one_by_one,
                limits=self._limits.of_tasks,
                waker=waker,
            )
        )
        match answer:
            case answers.Created(task, version, behind):
                if not behind:
                    self._handing_over.publish(self._agent.name, RunRef(task_id, 1), options)
                return Sent(task, version, since=version, ahead=0, new=True)
            case answers.Known():
                return await self._found(answer, scope)
            case answers.Conflict():
                raise self._reused(params)
            case answers.Limited():
                raise self._limits.refusal(self._agent.name, answer)

    async def _found(self, known: answers.Known, scope: Scope) -> Sent:
        found = await self._kept.read(scope, known.task_id)
        return Sent(found.task, found.version, since=known.version, ahead=known.ahead)

    def _reused(self, params: SendMessageRequest) -> InvalidParamsError:
        return invalid(
            "message.message_id",
            f"Another message was sent under this id within the last {self._agent.idempotency_window:g} seconds.",
        )

    async def _continue(self, params: SendMessageRequest, context: ServerCallContext, scope: Scope) -> Sent:
        task_id = params.message.task_id
        length = 0 if self._signature is None else None  # a call is made of all that was said
        whole = self._signature is not None
        found = await self._kept.read(scope, task_id, history_length=length, artifacts=False, whole=whole)
        task = found.task
        if found.archived:
            raise takes_no_more(task_id, task.status.state)
        request = _with_ids(params, task_id, task.context_id)
        caller = Caller.of(context)
        said = [message for message in task.history if message.role == Role.ROLE_USER]
        call = None if is_terminal(task.status.state) else self._call([*said, request.message])
        options = run_options(self._agent, request, caller, call)
        answer = await self._store.run(
            tasks.continue_task(
                self._keys,
                scope,
                task_id,
                request,
                params.message.context_id,
                caller=caller.to_json(),
                nonce=uuid4().hex,
                options=options.to_json(),
                once=once(self._agent, params),
                push=await self._push(params, context, task_id),
                limits=self._limits.of_tasks,
            )
        )
        match answer:
            case answers.TooManyConfigs():
                raise too_many(task_id)
            case answers.Missing():
                raise await self._kept.takes_no_more(scope, task_id)
            case answers.WrongContext(context_id):
                raise invalid("message.context_id", f"The task belongs to context {context_id!r}: name that or none.")
            case answers.Ended(state):
                raise takes_no_more(task_id, state)
            case answers.Full():
                raise UnsupportedOperationError(
                    f"{tasks.MAX_WAITING_TURNS} messages wait for this task already: send it again later",
                    data={"taskId": task_id},
                )
            case answers.Begun(run, task, version, behind, whole):
                if not behind:
                    self._handing_over.publish(self._agent.name, RunRef(task_id, run), options)
                return Sent(task, version, since=version, ahead=0, new=True, whole=whole)
            case answers.Waiting(place, task, version, whole):
                return Sent(task, version, since=version, ahead=place, whole=whole)
            case answers.Known():
                return await self._found(answer, scope)
            case answers.Conflict():
                raise self._reused(params)
            case answers.Limited():
                raise self._limits.refusal(self._agent.name, answer)

    async def _push(self, params: SendMessageRequest, context: ServerCallContext, task_id: str) -> NewPushConfig | None:
        """The push-notification config that comes with a message; None: it brings none."""
        return None if self._push_configs is None else await self._push_configs.inline(params, context, task_id)

    def _call(self, messages: list[Message]) -> Call | None:
        """What the messages call a plain Celery task with; None: the agent is none."""
        if self._signature is None:
            return None
        try:
            return Call(self._agent.code.name, self._signature.call(messages))
        except BadCall as e:
            raise invalid("message.parts", str(e)) from None


async def in_full(follower: LogFollower, sent: Sent) -> Sent:
    """`sent` with the whole task, as of a later version maybe.

    Raises:
        StoreUnavailable: that can't be read now.
    """
    if sent.whole:
        return sent
    found = await follower.store.run(tasks.read_task(follower.keys, None, sent.task.id))
    if found is None:
        raise not_found(sent.task.id)
    return replace(sent, task=found[0], version=found[1], whole=True)


def _with_ids(params: SendMessageRequest, task_id: str, context_id: str) -> SendMessageRequest:
    """`params` as its run shall see it: the message says which task and context it is in, and of the webhook, which may
    hold secrets, there is nothing."""
    request = SendMessageRequest()
    request.CopyFrom(params)
    request.configuration.ClearField("task_push_notification_config")
    request.message.task_id = task_id
    request.message.context_id = context_id
    return request
