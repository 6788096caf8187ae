"""Artifact parts from the values that an agent returns or yields."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from a2a.helpers import new_data_part, new_text_part
from a2a.types import Part
from a2a.utils.errors import InvalidAgentResponseError
from google.protobuf.json_format import ParseError
from google.protobuf.message import Message as ProtoMessage
from pydantic_core import PydanticSerializationError, to_jsonable_python


def has_content(parts: Iterable[Part]) -> bool:
    """Return True if `parts` contain non-blank text, data, a file or a URL."""
    return any(part.text.strip() if part.HasField("text") else part.WhichOneof("content") for part in parts)


def parts_of(content: Any) -> list[Part]:
    """Return the parts for `content`: text, bytes as a file, JSON-like data, a Part, or a list of Parts.

    Raises:
        InvalidAgentResponseError: `content` has another type.
    """
    match content:
        case str():
            return [new_text_part(content)]
        case bytes():
            return [Part(raw=content, media_type="application/octet-stream")]
        case Part():
            return [content]
        case [Part(), *_] if all(isinstance(part, Part) for part in content):
            return list(content)
        case dict() | list() | int() | float() | bool():
            try:
                return [new_data_part(content, media_type="application/json")]
            except (TypeError, ValueError, OverflowError, ParseError) as e:
                raise InvalidAgentResponseError(f"the agent returned data that is not JSON: {e}") from e
        case _:
            raise InvalidAgentResponseError(f"an agent can't answer with a {type(content).__name__}")


def jsonable(value: Any) -> Any:
    """Return the value of a plain function as JSON data. Tuples, dates, dataclasses and similar types are converted.

    Text, bytes and the types of A2A are returned unchanged.

    Raises:
        InvalidAgentResponseError: `value` has no form in JSON.
    """
    if isinstance(value, list) and value and all(isinstance(one, Part) for one in value):
        return value
    if value is None or isinstance(value, str | bytes | ProtoMessage):
        return value
    try:
        found = to_jsonable_python(value, bytes_mode="base64")
        json.dumps(found, allow_nan=False)
        return found
    except (PydanticSerializationError, ValueError) as e:
        raise InvalidAgentResponseError(f"the agent returned a {type(value).__name__}, which is not JSON") from e
