"""Errors of this package. Error messages state the remedy, and are not sent to remote clients unchanged.

`ConfigError` is a configuration error. `StoreUnavailable`, `BrokerUnavailable` and `ArchiveUnavailable` are temporary.
``gateway.protocol_errors`` maps errors of a request to A2A errors. An agent raises an `EndRun` to end its run, and
``execution`` maps the signal to the outcome of the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from a2a.types import Part

__all__ = [
    "A2ACeleryError",
    "ArchiveUnavailable",
    "AuthRequired",
    "BlobsUnavailable",
    "BrokerUnavailable",
    "ChildFailed",
    "ChildInterrupted",
    "ChildRefused",
    "ConfigError",
    "EndRun",
    "Failed",
    "InputRequired",
    "Rejected",
    "SessionConflict",
    "SessionError",
    "SignalRefused",
    "StepError",
    "StepFailed",
    "StepsChanged",
    "StoreUnavailable",
]


class PicklableError(BaseException):
    """Mixin for exceptions that pickle without a call of their constructor, whose parameters may differ from `args`.
    Celery pickles the exceptions of a prefork child, and result backends may pickle them too."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _recreate, (type(self), self.args, self.__dict__)


def _recreate(kind: type[BaseException], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    error = kind.__new__(kind, *args)
    error.args = args  # OSError ignores them in a class with its own constructor
    error.__dict__.update(attributes)
    return error


class A2ACeleryError(PicklableError, Exception):
    """Base class of this package's errors, except `LimitExceededError` and the exceptions that are not an
    `Exception`.

    Attributes:
        replaces_cause: True if the agent receives the error instead of the exception that occurred, which is
            `__cause__`. The retry options of the agent then apply to the cause.
    """

    replaces_cause: ClassVar[bool] = False


class ConfigError(A2ACeleryError):
    """Error for an invalid setting, card or agent, or an invalid call to this package's API. The error names the
    invalid value.

    Settings, cards and agents are checked when a process starts.
    """


class StoreUnavailable(A2ACeleryError):
    """Error for a Redis server that is unreachable or refuses commands. The same call may succeed later."""


class BlobsUnavailable(StoreUnavailable):
    """Error for an object store that is unreachable or not configured, or for a large part that is missing or damaged.
    The same call may succeed later."""


class ArchiveUnavailable(A2ACeleryError):
    """Error for an archive whose database is unreachable, or refuses a read or a write. Tasks stay in the store until
    they are archived."""


class BrokerUnavailable(A2ACeleryError):
    """Error for a message that the Celery broker did not accept. The task stays in the store, and its run is published
    later."""


class RunNotAccepted(BrokerUnavailable):
    """Error for a run that a reachable broker did not accept, for example because the run's queue is full. Other runs
    may be accepted."""


class PublicationFailed(RunNotAccepted):
    """Error for a run whose publication raised an exception of the app, such as one of a router or of the task's
    ``apply_async``. A watcher tries the publication a few times."""


class SessionError(A2ACeleryError):
    """Error for a session whose state cannot be saved or read."""


class SessionConflict(SessionError):
    """Error for a session that another run of the context saved after this run had read it. The session was not saved
    again."""


class ChildRefused(A2ACeleryError):
    """Error for a message of `Turn.call` that an agent refused, so that no child task exists.

    Attributes:
        agent: Name or URL of the agent.
    """

    def __init__(self, text: str, agent: str) -> None:
        super().__init__(text)
        self.agent = agent


class ChildFailed(A2ACeleryError):
    """Error for a child task of `Turn.call` that did not complete. The error text contains no text from the child's
    agent.

    Attributes:
        agent: Name or URL of the agent.
        task_id: Id of the child.
        state: Name of the child's state, such as "FAILED".
        result: The complete ``client.Result``.
    """

    def __init__(self, text: str, agent: str, task_id: str, state: str, result: Any) -> None:
        super().__init__(text)
        self.agent, self.task_id, self.state, self.result = agent, task_id, state, result


class ChildInterrupted(ChildFailed):
    """Error for a child task of `Turn.call` that waits for input or authorization.

    Attributes:
        question: Parts of the child's question.
    """

    @property
    def question(self) -> list[Part]:
        """Parts of the question."""
        parts: list[Part] = self.result.parts
        return parts


class SignalRefused(A2ACeleryError):
    """Error for a signal that cannot be received, because its task is unknown, has ended, stores too many signals or
    would become too large, or because the task's agent is not a function."""


class StepError(A2ACeleryError):
    """Error for a durable step that cannot be executed, or whose result cannot be recorded. The message states the
    remedy."""


class StepFailed(A2ACeleryError):
    """Error for a durable step that failed with an exception that cannot be recreated from its class and arguments.

    The agent receives this exception instead of the exception of the step, even in the run in which the step failed. In
    that run, `__cause__` is the exception of the step.

    Attributes:
        step: Name of the step.
        class_name: Name of the exception's class, with its module.
        text: Text of the exception.
    """

    replaces_cause = True

    def __init__(self, step: str, class_name: str, text: str) -> None:
        super().__init__(step, class_name, text)
        self.step = step
        self.class_name = class_name
        self.text = text

    def __str__(self) -> str:
        return f"step {self.step!r} failed: {self.class_name}: {self.text}"


class StepsChanged(BaseException):
    """Error for agent code that does not match the steps that an earlier run recorded. The task fails and can be
    requeued.

    The class is not an `Exception`, so that an ``except Exception`` in agent code does not catch it.
    """


class EndRun(PicklableError):
    """Base class of the exceptions that an agent raises to end its run. Text and parts are sent to the client.

    None as `parts` means no parts.

    Raises:
        TypeError: A part is not an ``a2a.types.Part``.
    """

    def __init__(self, text: str = "", *, parts: Sequence[Part] | None = ()) -> None:
        # not at import: most processes never raise an EndRun
        from a2a.types import Part  # noqa: PLC0415

        from .lifecycle.json_values import portable_text  # noqa: PLC0415

        super().__init__(text)
        parts = parts or ()
        wrong = next((part for part in parts if not isinstance(part, Part)), None)
        if wrong is not None:
            raise TypeError(f"parts are a2a.types.Part, not {type(wrong).__name__}")
        self.parts: list[Part] = [*([Part(text=portable_text(text))] if text else []), *parts]

    def __reduce__(self) -> tuple[Any, ...]:
        # the messages of the SDK cannot be pickled
        parts = [part.SerializeToString() for part in self.parts]
        return _recreate_end, (type(self), self.args, self.__dict__ | {"parts": parts})


def _recreate_end(kind: type[EndRun], args: tuple[Any, ...], attributes: dict[str, Any]) -> BaseException:
    from a2a.types import Part  # noqa: PLC0415

    parts = [Part.FromString(part) for part in attributes["parts"]]
    return _recreate(kind, args, attributes | {"parts": parts})


class InputRequired(EndRun):
    """Exception that ends the run in INPUT_REQUIRED. The client's next message to the task begins the next run.

    The class is not an `Exception`, because frameworks catch every `Exception` of a tool and continue.
    """


class AuthRequired(EndRun):
    """Exception that ends the run in AUTH_REQUIRED. The client's next message to the task begins the next run.

    The class is not an `Exception`; see `InputRequired`.
    """


class SuspendRun(EndRun):
    """Exception that suspends the run until a time, a signal or the end of another task.

    `Turn.sleep`, `Turn.wait_for` and `Turn.call` raise this exception. Do not catch it. The class is not an
    `Exception`; see `InputRequired`.
    """


class Rejected(EndRun, A2ACeleryError):
    """Exception that ends the task in REJECTED, because the agent declines the request."""


class Failed(EndRun, A2ACeleryError):
    """Exception that ends the task in FAILED, with a text for the client."""
