"""Interface between the server and its features."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeAlias

if TYPE_CHECKING:  # a process that only registers agents does not import the SDK
    import click
    from a2a.types import Message, SendMessageRequest, TaskState

    from ..gateway.operator.operator_request import OperatorRequest
    from ..lifecycle.references import Scope
    from ..lifecycle.refusals import Refusal
    from ..operations.service import TaskService
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


class RunFeature:
    """Use of a feature by one run. The feature is opened before the agent is called, because of `RUN_FEATURES` or
    `REPLAY_FEATURES`, or on first use, by `RunningAgent.feature`.

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


class ClientOperation(NamedTuple):
    """Operation of the HTTP+JSON binding that A2A does not define. The gateway checks the parameters and the caller's
    limits, and counts and traces the operation.

    Attributes:
        method: HTTP method.
        path: Path of the operation, whose parameters are fields of the request.
        name: Name of the operation.
        summary: Description in one sentence, for the OpenAPI document.
        kind: Type of the request.
        schemas: JSON Schemas of the response, by name. The response has the first one.
        respond: Function that performs the operation for the caller's scope and returns the response body.
    """

    method: Literal["GET", "POST"]
    path: str
    name: str
    summary: str
    kind: type[Any]
    schemas: Mapping[str, dict[str, Any]]
    respond: Callable[[TaskService, Scope, Any], Awaitable[dict[str, Any]]]


class TaskView(NamedTuple):
    """Option of ``get`` that shows a stored task in another way.

    Attributes:
        help: Help of the option.
        show: Function that shows a task. It receives the context of the command, the id of the task, the name of its
            agent or None, and True for JSON.
    """

    help: str
    show: Callable[[click.Context, str, str | None, bool], None]


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
