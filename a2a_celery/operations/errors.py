"""Errors of requests: invalid fields, unknown tasks and exceeded limits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from a2a.utils.errors import A2AError, InvalidParamsError, TaskNotFoundError

MAX_ID_LENGTH = 256
"""Maximum length of an id, a tenant or an owner in a request, in characters. Errors truncate longer values."""


class LimitExceededError(A2AError):
    """Error for a request that was refused because a limit of the caller or of the service is reached.

    `data` contains the name of the limit (`limit`) and the number of seconds after which the caller may retry
    (`retryAfter`).
    """

    message = "Too many requests"


class FieldErrors(dict[str, Any]):
    """Field violations as the data of an InvalidParamsError, from which the SDK builds a BadRequest.

    A lookup of the key "errors" returns the violations, but the mapping itself is empty. The SDK also sends the mapping
    as ErrorInfo.metadata, whose values must be strings. Typed clients could not read metadata that contains a list.
    """

    def __init__(self, errors: list[Any]) -> None:
        super().__init__()
        self._errors = errors

    def get(self, key: str, default: Any = None) -> Any:
        """Return the violations for "errors", and `default` for any other key."""
        return self._errors if key == "errors" else default

    def __missing__(self, key: str) -> Any:
        return {"errors": self._errors}[key]

    def __bool__(self) -> bool:
        return bool(self._errors)


MAX_NAMED = 3
"""Maximum number of fields in the text of an error. The error's details list all fields."""


def capitalized(error: object) -> str:
    """Return the text of an error or a refusal with a capital first letter."""
    text = str(error)
    return text[:1].upper() + text[1:]


def invalid(field: str, rule: str) -> InvalidParamsError:
    """Return an InvalidParamsError for one field.

    Args:
        field: Name of the field in the .proto, of a parameter or of a header.
        rule: Rule that the field violates.
    """
    return invalid_fields([{"field": field, "message": rule}])


def invalid_fields(errors: Sequence[Mapping[str, str]]) -> InvalidParamsError:
    """Return an InvalidParamsError for several fields. Each of `errors` has a "field" and a "message"."""
    return InvalidParamsError(fields_text(errors), data=FieldErrors(list(errors)))


def fields_text(errors: Sequence[Mapping[str, str]]) -> str:
    """Return the field errors as text, for clients that show an error's text but not the details."""
    text = " ".join(f"{error['field']}: {error['message'].rstrip('.')}." for error in errors[:MAX_NAMED])
    return f"{text} {len(errors) - MAX_NAMED} more fields are wrong." if len(errors) > MAX_NAMED else text


def not_found(task_id: str) -> TaskNotFoundError:
    """Return the error for a task that does not exist or belongs to another owner, without distinguishing the cases."""
    return TaskNotFoundError("Task not found", data={"taskId": task_id[:MAX_ID_LENGTH]})
