"""Interface between the server and its features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Container, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    from a2a.types import Message, SendMessageRequest, TaskState, TaskStatusUpdateEvent
    from google.protobuf.message import Message as Proto

    from ..dispatch import RunOptions
    from ..execution.events.activities import Execution
    from ..execution.events.queue import RunEventQueue
    from ..execution.open_run import OpenRun
    from ..gateway.call import Call
    from ..gateway.handler import GatewayHandler
    from ..gateway.operator.operator_request import OperatorRequest
    from ..lifecycle import Outcome
    from ..lifecycle.references import RunRef, Scope
    from ..lifecycle.refusals import Refusal
    from ..settings import Settings
    from ..store import Keys
    from ..store.operation import Operation
    from ..store.runs.commands import EndRefused
    from ..store.tasks.replies import Known
    from ..store.verbs import Section


class Feature(Protocol):
    """Use of a feature by one agent.

    Attributes:
        OPTIONS: Names of the options of agents that belong to the feature.
        recognizes_repeats: True if a message may repeat an accepted message. Such a message may name times that have
            passed, and its copy may be in the history of its task.
        saves_context_data: True if a run saves data of its context when the run ends. The runs of a context are then
            serialized by default, the final event of a run is written after the agent has returned, and workers need
            the secrets that seal the saved data.
    """

    OPTIONS: ClassVar[frozenset[str]]
    recognizes_repeats: ClassVar[bool] = False
    saves_context_data: ClassVar[bool] = False

    @classmethod
    def of_agent(cls, agent: str, options: Mapping[str, Any]) -> Self | None:
        """Return what an agent uses of the feature, or None for nothing.

        Args:
            agent: Name of the agent, for messages.
            options: Options of the agent with names in `OPTIONS`.

        Raises:
            ConfigError: An option is invalid.
        """

    def check_settings(self, agent: str, settings: Settings) -> None:
        """Check the options of an agent against the settings.

        Raises:
            ConfigError: The options do not fit the settings.
        """
        return

    def section_for_message(
        self, keys: Keys, scope: Scope, request: SendMessageRequest
    ) -> Section[Known | Refusal] | None:
        """Return the section of ``create_task`` or ``continue_task`` for a message, or None for no section.

        Args:
            keys: Keys of the deployment.
            scope: Scope of the task.
            request: Unchanged request of the client.
        """
        return None


class ServiceFeature(Protocol):
    """Use of a feature by one `TaskService`, because the settings of the fleet turn the feature on.

    Each feature defines `section_for_scope` and `section_for_run`: the default methods would be executed for each
    message, and an echo enters no module of the features' interface.

    Attributes:
        acts_on_runs: True if the feature has sections for the runs that messages begin. The service then reads the
            number of the run before a message continues a task.
    """

    acts_on_runs: ClassVar[bool] = False

    def section_for_scope(self, scope: Scope) -> Section[Any] | None:
        """Return the section for a client's message or signal to a task in `scope`, or None for no section."""

    def section_for_run(self, agent: str, ref: RunRef, options: RunOptions) -> Section[Any] | None:
        """Return the section for a message that may begin a run, or None for no section.

        Args:
            agent: Name of the agent.
            ref: Run that the message begins, unless the message is refused, repeated or waits.
            options: Options of the run.
        """

    def run_not_published(self) -> None:
        """Receive the notice that a message has begun a run whose section has not published the run."""


class AppFeature(Protocol):
    """Use of a feature by one app. Methods of `A2A` add it to `A2A.app_features` on first use."""

    def require_agents(self, agents: Container[str]) -> None:
        """Check that the agents that the app has named exist. The method is called when a worker starts.

        Raises:
            ConfigError: An agent is not in `agents`.
        """

    def open_run(self, run: OpenRun, events: RunEventQueue, execution: Execution) -> RunFeature | None:
        """Return the feature of a run that this worker has claimed, or None if the run does not use the feature.

        The method is called before the first transition of `execution`, on the event loop of the run. The request of
        the claim may be incomplete. The method may add a listener to `execution` and a rewriter to `events`.
        """


class RunFeature:
    """Use of a feature by one run. The feature is opened when the run is claimed, by an `AppFeature`, before the agent
    is called, because of `RUN_FEATURES` or `REPLAY_FEATURES`, or on first use, by `RunningAgent.feature`.

    The methods of a subclass that does not override them do nothing.

    Attributes:
        EXECUTOR_KEY: Key of the feature in the `call_context.state` of an executor, or "" if executors do not use it.
    """

    __slots__ = ()

    EXECUTOR_KEY: ClassVar[str] = ""

    async def section_for_end(self, state: TaskState, refusal: EndRefused | None = None) -> Section[Any] | None:
        """Return the section of ``settle_run`` for the end of the run, or None for no section.

        The method is called again if a section refuses the end, or if a feature requires that the run fails. A run that
        is released for a retry, a wait or a canvas does not call the method.

        Args:
            state: State in which the run leaves the task, unless the client has cancelled the task or a message
                follows.
            refusal: Reply with which the section of a feature has refused the end, or None. The other features ignore
                the reply.

        Raises:
            A2ACeleryError: The run must fail. The method is called again for FAILED.
        """
        return None

    async def before_agent(self) -> None:
        """Prepare the run for the call of the agent. The claim is complete.

        Raises:
            BaseException: The run ends as if the agent had raised this exception.
        """

    async def after_agent(self, outcome: Outcome, state: TaskState) -> Outcome:
        """Return the outcome of the run, which may differ from the outcome of the agent.

        Args:
            outcome: Outcome of the agent.
            state: State of the task after the events of the agent.
        """
        return outcome

    async def last_status(
        self, final: TaskStatusUpdateEvent, outcome: Outcome, events: RunEventQueue
    ) -> TaskStatusUpdateEvent:
        """Return the last status of the run, instead of `final`. A run that is retried or suspended does not call the
        method. If the agent has already sent the last status, `final` is not written."""
        return final

    def agent_returned(self) -> None:
        """Check that the agent may return. The method is called before the agent's result is sent.

        Raises:
            BaseException: The run ends with this exception.
        """

    def forget_answer(self) -> bool:
        """Discard the effects of the answer to `Turn.ask` that the agent has refused, because the next message answers
        the question.

        Returns:
            False if the effects cannot be discarded. The next message then begins another turn.
        """
        return True


RunInThread: TypeAlias = Callable[[Callable[[], object]], Awaitable[object]]
"""Function that runs a validation in a thread, and re-raises its exception. A long validation does not delay other
owners."""


class ValidationRequired(ABC):
    """Reply of a section to a message that must be validated before the store accepts it. Nothing was written."""

    @abstractmethod
    async def validate(self, message: Message, run_in_thread: RunInThread) -> Section[ValidationRequired]:
        """Validate a message. Return the section that replaces the section of the same class in the repeated call.

        Raises:
            A2AError: The message is refused.
        """


class GatewayFeature(Protocol):
    """Use of a feature by one gateway."""

    async def section_for_message(
        self, params: SendMessageRequest, call: Call, task_id: str
    ) -> Section[Refusal] | None:
        """Return the section of ``create_task`` or ``continue_task`` for a client's message, or None for no section.

        Args:
            params: Request of the client.
            call: Call of the client.
            task_id: Id of the task that the message creates or continues.

        Raises:
            A2AError: The message is refused.
        """

    async def aclose(self) -> None:
        """Release the resources of the feature when the gateway stops."""


class GatewayOperation(NamedTuple):
    """Operation of a gateway.

    Attributes:
        name: Name of the operation.
        summary: Description in one sentence.
        method: HTTP method.
        path: Path in the HTTP+JSON binding.
        request: Type of the request. Parameters of the path that are not fields of it are in
            `Call.path_parameters`.
        perform: Function that performs the operation and returns the response: a message of A2A, a JSON object, or
            None.
        response: Name of the JSON Schema of the response, or "" for an operation of A2A.
        status: HTTP status of a successful response.
        operation_id: Id in the OpenAPI document, or "" for `name`.
    """

    name: str
    summary: str
    method: str
    path: str
    request: type[Proto]
    perform: Callable[[GatewayHandler, Any, Call], Awaitable[Proto | dict[str, Any] | None]]
    response: str = ""
    status: int = 200
    operation_id: str = ""


class FilteredTasks(NamedTuple):
    """Tasks that a `TaskFilter` selects by a value.

    Attributes:
        index_prefix: Prefix of the index of the tasks, which a section joins with ``join_index``.
        further_times: Operation that reads the times of further rows of the list, newest first, or None.
        field: Name of a further row's time in JSON. The operator's API uses the plural.
        text: Text of a further row, before its time.
    """

    index_prefix: str
    further_times: Operation[list[datetime]] | None = None
    field: str = ""
    text: str = ""


class TaskFilter(NamedTuple):
    """Filter of the operators' lists of tasks.

    Attributes:
        name: Name of the filter as a query parameter of the operator's API, and as an option of ``list``.
        help: Help of the option.
        select: Function that returns the tasks that the filter selects by a value.
    """

    name: str
    help: str
    select: Callable[[Keys, str], FilteredTasks]


class TaskView(NamedTuple):
    """Option of ``get`` that shows a stored task in another way.

    Attributes:
        help: Help of the option.
        show: Function that shows a task. It receives the context of the command and, by name, `task_id`, `agent` (the
            name of its agent or None) and `as_lines` (True for JSON).
    """

    help: str
    show: Callable[..., None]


class OperatorRoute(NamedTuple):
    """Route of the operator's API. A route that changes something leaves a line in the audit log; see
    ``gateway/operator/audit.py``.

    Attributes:
        method: HTTP method.
        path: Path after the API's prefix.
        name: Name of the operation.
        respond: Function that performs the operation and returns the response body.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    respond: Callable[[OperatorRequest], Awaitable[dict[str, Any]]]
