"""From our errors to the protocol's, in one place; and nothing internal past it.

Source: A2A specification 3.3.2 and 5.4; ``google.rpc`` error details.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar
from uuid import uuid4

from a2a.server.jsonrpc_models import JSONRPCError
from a2a.server.request_handlers.response_helpers import EXCEPTION_MAP
from a2a.utils.errors import (
    A2A_ERROR_MAPPING,
    A2A_ERROR_REASONS,
    JSON_RPC_ERROR_CODE_MAP,
    A2AError,
    ErrorMapping,
    InternalError,
    InvalidParamsError,
    TaskNotFoundError,
)

from ..errors import ArchiveUnavailable, StoreUnavailable
from ..telemetry.logs import about
from ..telemetry.names import Action

logger = logging.getLogger(__name__)

MAX_ID_LENGTH = 256
"""The longest id a client may choose (of a message or a context), and the most of one that is said back."""

REACHED = "a2a_reached"
"""Set in a call context by the first step of every operation: from there on a failure is not the request's."""

F = TypeVar("F", bound=Callable[..., Any])


class ServiceUnavailableError(A2AError):
    """The service can't answer right now; the same request may succeed later (3.3.2, system errors)."""

    message = "The service is temporarily unavailable: try again later"


class RequestTooLargeError(A2AError):
    """The request's body is larger than this service reads."""

    message = "The request is too large"


class UnauthenticatedError(A2AError):
    """Nobody knows who asks; says no more (3.3.2, authentication errors)."""

    message = "Authentication is required, by one of the schemes in the agent's card"


class PermissionDeniedError(A2AError):
    """Whoever asks may not do so there (3.3.2, authorization errors)."""

    message = "Not permitted"


class LimitExceededError(A2AError):
    """The caller, or everybody, has as much under way as may be; nothing was done. `data` has the `limit`, and
    `retryAfter`, the whole seconds after which the caller may come again."""

    message = "Too many requests"


# The SDK has no words for these; its tables are where its bindings look them up. What JSON-RPC has no entry for is an
# internal error (-32603), which is what 3.3.2 says of system errors.
OWN_MAPPINGS: dict[type[A2AError], ErrorMapping] = {
    UnauthenticatedError: ErrorMapping(401, "UNAUTHENTICATED", "UNAUTHENTICATED"),
    PermissionDeniedError: ErrorMapping(403, "PERMISSION_DENIED", "PERMISSION_DENIED"),
    ServiceUnavailableError: ErrorMapping(503, "UNAVAILABLE", "SERVICE_UNAVAILABLE"),
    RequestTooLargeError: ErrorMapping(413, "INVALID_ARGUMENT", "REQUEST_TOO_LARGE"),
    LimitExceededError: ErrorMapping(429, "RESOURCE_EXHAUSTED", "LIMIT_EXCEEDED"),
}
A2A_ERROR_MAPPING.update(OWN_MAPPINGS)
OWN_RPC_CODES: dict[type[A2AError], int] = {UnauthenticatedError: -31401, PermissionDeniedError: -31403}
"""Of our own choice: JSON-RPC leaves what is above -32000 to applications, and A2A has no code for these."""
JSON_RPC_ERROR_CODE_MAP.update(OWN_RPC_CODES)
EXCEPTION_MAP.update(dict.fromkeys(OWN_RPC_CODES, JSONRPCError))
A2A_ERROR_REASONS.update({error: mapping.reason for error, mapping in OWN_MAPPINGS.items()})


_RPC_STATUS = {code: OWN_MAPPINGS[error].http_code for error, code in OWN_RPC_CODES.items()}


def rpc_status(answer: Mapping[str, Any]) -> int:
    """The HTTP status that a JSON-RPC `answer` is sent with: 200 also for most errors, but not for those about who
    asks, which proxies and clients act on."""
    return _RPC_STATUS.get(answer.get("error", {}).get("code"), 200)


class FieldErrors(dict[str, Any]):
    """The violations of an InvalidParamsError, for the SDK to make a BadRequest of; as a mapping it is empty.

    The SDK also sends an error's whole ``data`` as ErrorInfo.metadata, which by its definition maps strings to strings:
    a list in there makes the detail unreadable to any client that takes the type by its word.
    """

    def __init__(self, errors: list[Any]) -> None:
        super().__init__()
        self._errors = errors

    def get(self, key: str, default: Any = None) -> Any:
        """The violations under "errors", nothing else."""
        return self._errors if key == "errors" else default

    def __missing__(self, key: str) -> Any:
        return {"errors": self._errors}[key]

    def __bool__(self) -> bool:
        return bool(self._errors)


MAX_NAMED = 3
"""Number of wrong fields that the text of an error names; its details name all of them."""


def invalid(field: str, rule: str) -> InvalidParamsError:
    """Return an InvalidParamsError that names `field`, as in the .proto, and the `rule` that it breaks."""
    return invalid_fields([{"field": field, "message": rule}])


def invalid_fields(errors: Sequence[Mapping[str, str]]) -> InvalidParamsError:
    """Return an InvalidParamsError for several fields, each with "field" and "message"."""
    return InvalidParamsError(fields_text(errors), data=FieldErrors(list(errors)))


def fields_text(errors: Sequence[Mapping[str, str]]) -> str:
    """Return what is wrong with each field, for clients that show the text of an error and not its details."""
    named = " ".join(f"{error['field']}: {error['message'].rstrip('.')}." for error in errors[:MAX_NAMED])
    return f"{named} {len(errors) - MAX_NAMED} more fields are wrong." if len(errors) > MAX_NAMED else named


def not_found(task_id: str) -> TaskNotFoundError:
    """The same for a task that is not there and for one that is somebody else's."""
    return TaskNotFoundError("Task not found", data={"taskId": task_id[:MAX_ID_LENGTH]})


def to_a2a(error: Exception) -> A2AError:
    """The error a client gets for `error`: its own if it is one of the protocol's, else one without any detail."""
    if isinstance(error, A2AError):
        if isinstance(error, InvalidParamsError) and type(error.data) is dict and "errors" in error.data:
            return invalid_fields(error.data["errors"])
        return error
    if isinstance(error, StoreUnavailable | ArchiveUnavailable):
        logger.warning("a request was not answered: %s", error, extra=about(Action.REQUEST_FAILED))
        return ServiceUnavailableError()
    reference = uuid4().hex[:12]
    said = about(Action.REQUEST_FAILED, reference=reference)
    logger.error("an operation failed [reference %s]", reference, exc_info=error, extra=said)
    return InternalError("Internal error", data={"reference": reference})


def speaks_a2a(method: F) -> F:
    """Makes a method, async or an async generator, raise nothing but A2A errors."""
    if inspect.isasyncgenfunction(method):

        @functools.wraps(method)
        async def stream(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
            events = method(*args, **kwargs)
            del args, kwargs  # of a stream, which is there for long
            try:
                async for event in events:
                    yield event
                    del event
            except Exception as e:
                raise to_a2a(e) from None
            finally:
                await events.aclose()

        return stream  # type: ignore[return-value]

    @functools.wraps(method)
    async def unary(*args: Any, **kwargs: Any) -> Any:
        try:
            return await method(*args, **kwargs)
        except Exception as e:
            raise to_a2a(e) from None

    return unary  # type: ignore[return-value]
