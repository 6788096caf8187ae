"""Strict parser that converts JSON bodies and query parameters to protobuf requests.

protobuf drops an unknown status, accepts any text as base64, and reads a text as an object without fields. The SDK
reads every boolean other than "true" as false. Without the strict checks, the gateway would execute a request that the
client did not send.

Source: A2A specification 3.3.2 (validation errors), 11.5 (query parameters); ProtoJSON.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar

from a2a.utils.errors import InvalidParamsError
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import ParseDict
from google.protobuf.message import Message as Proto
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.timestamp_pb2 import Timestamp

from ...lifecycle.json_values import INEXACT, TOO_DEEP, TooDeep, inexact_place
from ...operations.errors import invalid

P = TypeVar("P", bound=Proto)

LONG_TEXT = 1 << 16
"""Number of characters above which the text of a message part bypasses ParseDict."""

LEVELS_ABOVE_VALUES = {"message": 11, "request": 11, "metadata": 3}
"""Number of protobuf levels between a field of a request and the values that clients choose, counted as in
`MAX_VALUE_DEPTH`. Protocol 0.3 has two names for the message."""

MAX_PATH = 300
"""Maximum length of the path of a number in an error, in characters. Clients choose the keys in the path."""

_RULES = {
    FieldDescriptor.TYPE_STRING: "A text.",
    FieldDescriptor.TYPE_BYTES: "Base64, standard or URL-safe.",
    FieldDescriptor.TYPE_BOOL: "true or false.",
    FieldDescriptor.TYPE_INT32: "A whole number.",
}
_JSON_TYPES = {
    "google.protobuf.Timestamp": "A time such as 2030-01-01T08:00:00Z.",
    "google.protobuf.Struct": "An object of JSON values.",
    "google.protobuf.Value": "A JSON value.",
}

_INT32 = range(-(2**31), 2**31)
_WHOLE = re.compile(r"-?[0-9]{1,10}", re.ASCII)
_PADDED_BASE64 = re.compile(r"[A-Za-z0-9+/]*={0,2}", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/_-]*={0,2}", re.ASCII)


def parse_json(value: Any, kind: type[P]) -> P:
    """Parse a request from the JSON value `value`.

    Raises:
        InvalidParamsError: `value` is not a request of the type `kind`.
    """
    if not isinstance(value, Mapping):
        raise invalid("params", "An object.")
    _require_readable(value, kind.DESCRIPTOR)
    for name, levels in LEVELS_ABOVE_VALUES.items():
        if name in value:
            require_exact(value[name], name, -levels)
    _require_known_names(value, kind)
    fields, texts = _without_long_texts(value)
    try:
        request = ParseDict(fields, kind(), ignore_unknown_fields=True)
        for index, text in texts.items():
            request.message.parts[index].text = text  # type: ignore[attr-defined]
        return request
    except Exception:
        raise _wrong_field(fields, kind.DESCRIPTOR) from None


def require_exact(value: Any, path: str, levels: int = 0) -> None:
    """Check that protobuf can represent the JSON `value`.

    Args:
        value: Value at `path` of the request, or an object that contains such values.
        path: Path of the value, for the error.
        levels: Number of protobuf levels above the value, or below 0 for an object that contains values.

    Raises:
        InvalidParamsError: A whole number would change, or the value is nested too deeply.
    """
    try:
        place = inexact_place(value, levels)
    except TooDeep:
        raise invalid("message", f"Data or metadata is {TOO_DEEP}.") from None
    if place is not None:
        raise invalid((path + place)[:MAX_PATH], INEXACT)


def _without_long_texts(value: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, str]]:
    """Replace each long text of a message part with "". Return the new fields of the request, and the long texts by the
    index of their part.

    ParseDict searches each text with a regular expression, which holds the GIL for 20 ms per megabyte.
    """
    fields = dict(value)
    parts = _parts_of(value)
    texts = {
        index: part["text"]
        for index, part in enumerate(parts)
        if isinstance(part, Mapping) and isinstance(part.get("text"), str) and len(part["text"]) > LONG_TEXT
    }
    if texts:
        short_parts = [{**part, "text": ""} if index in texts else part for index, part in enumerate(parts)]
        fields["message"] = {**fields["message"], "parts": short_parts}
    return fields, texts


def _parts_of(value: Mapping[str, Any]) -> list[Any]:
    """Return the parts of the message in `value`, or an empty list if there is no list of parts."""
    message = value.get("message")
    parts = message.get("parts") if isinstance(message, Mapping) else None
    return parts if isinstance(parts, list) else []


def _wrong_field(value: Mapping[str, Any], kind: Any, path: str = "") -> InvalidParamsError:
    """Return the error for the first field of `value` that protobuf cannot read.

    The texts of protobuf's parser are not used, because they describe Python types.

    Args:
        value: Object that protobuf cannot read as the message type `kind`, and that has passed `_require_readable`.
        kind: Descriptor of the message type.
        path: Path of `value` in the request, or "" for the request.
    """
    for name in value:
        field, inner = kind.fields_by_camelcase_name.get(name) or kind.fields_by_name.get(name), value[name]
        if field is None or _is_readable({name: inner}, kind):
            continue
        path = _path(path, field)
        if field.is_repeated:
            if not isinstance(inner, list):
                return invalid(path, "A list.")
            index = next(n for n, item in enumerate(inner) if not _is_readable({name: [item]}, kind))
            path, inner = f"{path}[{index}]", inner[index]
        return _wrong_field(inner, field.message_type, path) if _is_object(field) else invalid(path, _rule(field))
    choice = next((oneof for oneof in kind.oneofs if len(oneof.fields) > 1), None)
    rule = "The fields of this object, each once."
    if choice is not None:
        rule = f"Only one of: {', '.join(field.name for field in choice.fields)}."
    return invalid(path or "params", rule)


def _path(path: str, field: Any) -> str:
    """Return the path of `field` in the object at `path`."""
    return f"{path}.{_name(field)}" if path else _name(field)


@cache
def _name(field: Any) -> str:
    """Return the name of `field` in errors: its name, unless the specification gives the field another name in JSON,
    as protocol 0.3 does."""
    has_own_name = field.json_name.lower() != field.name.replace("_", "")
    return str(field.json_name if has_own_name else field.name)


def _is_readable(value: dict[str, Any], kind: Any) -> bool:
    try:
        ParseDict(value, GetMessageClass(kind)(), ignore_unknown_fields=True)
    except Exception:  # protobuf raises many types
        return False
    return True


def _rule(field: Any) -> str:
    """Return the rule for the values of `field`, for which `_is_object` is False."""
    if field.enum_type is not None:
        return f"One of {', '.join(field.enum_type.values_by_name)}."
    return _RULES[field.type] if field.message_type is None else _JSON_TYPES[field.message_type.full_name]


def parse_query(query: Mapping[str, str], kind: type[P]) -> P:
    """Parse a request from query parameters. Unknown and nested parameters are ignored.

    Raises:
        InvalidParamsError: The value of a parameter does not have the type of its field.
    """
    params = kind()
    for field in kind.DESCRIPTOR.fields:
        text = query.get(field.json_name)
        if text is None:
            continue
        if field.message_type is not None and field.message_type is Timestamp.DESCRIPTOR:
            getattr(params, field.name).CopyFrom(_timestamp(field, text))
        elif (parser := _SCALARS.get(field.type)) is not None:
            setattr(params, field.name, parser(field, text))
    return params


def one_tenant(*tenants: str) -> str:
    """Return the tenant in the path, the query or the body of a request, or "" if there is none.

    Raises:
        InvalidParamsError: The request contains different tenants.
    """
    names = {tenant for tenant in tenants if tenant}
    if len(names) > 1:
        raise invalid("tenant", "The path, the query and the body name one tenant, or leave it out.")
    return next(iter(names), "")


def _boolean(field: Any, text: str) -> bool:
    if text not in ("true", "false"):
        raise invalid(field.name, _rule(field))
    return text == "true"


def _int32(field: Any, text: str) -> int:
    if _WHOLE.fullmatch(text) is None or int(text) not in _INT32:
        raise invalid(field.name, _rule(field))
    return int(text)


def _enum(field: Any, text: str) -> int:
    """Return the number of an enum value. The operation checks whether a number is known, in every binding."""
    assert field.enum_type is not None
    value = field.enum_type.values_by_name.get(text)
    if value is None and not text.isdecimal():
        raise invalid(field.name, _rule(field))
    return _int32(field, text) if value is None else int(value.number)


def _timestamp(field: Any, text: str) -> Timestamp:
    time = Timestamp()
    try:
        time.FromJsonString(text)
    except ValueError:
        raise invalid(field.name, _rule(field)) from None
    return time


_SCALARS: dict[int, Callable[[Any, str], Any]] = {
    FieldDescriptor.TYPE_STRING: lambda field, text: text,
    FieldDescriptor.TYPE_BOOL: _boolean,
    FieldDescriptor.TYPE_INT32: _int32,
    FieldDescriptor.TYPE_ENUM: _enum,
}


def _require_readable(value: Mapping[str, Any], kind: Any, path: str = "") -> None:
    """Check the values that protobuf would change instead of refusing them: it reads a text or a list as an object
    without fields, skips the invalid characters of base64, and reads true and 1.7 as the number 1 of an enum.

    Raises:
        InvalidParamsError: A field that is an object has another value, bytes are not base64, or the value of an enum
            is neither a name nor a whole number.
    """
    checked_fields = _checked_fields(kind)
    for name, inner in value.items():
        field = checked_fields.get(name)
        if field is None or inner is None or (field.is_repeated and not isinstance(inner, list)):
            continue  # protobuf refuses a repeated field that is not a list
        inner_path = _path(path, field)
        for number, item in enumerate(inner if field.is_repeated else [inner]):
            item_path = f"{inner_path}[{number}]" if field.is_repeated else inner_path
            if not _is_object(field):
                if not (_is_enum_value(item) if field.enum_type else not isinstance(item, str) or is_base64(item)):
                    raise invalid(item_path, _rule(field))
            elif isinstance(item, Mapping):
                _require_readable(item, field.message_type, item_path)
            else:
                raise invalid(item_path, "An object.")


@cache
def _checked_fields(kind: Any) -> dict[str, Any]:
    """Return the fields of a message type that `_require_readable` checks, by both names in JSON."""
    return {
        name: field
        for field in kind.fields
        if _is_object(field) or field.type in (FieldDescriptor.TYPE_BYTES, FieldDescriptor.TYPE_ENUM)
        for name in (field.name, field.json_name)
    }


def _is_enum_value(value: Any) -> bool:
    """Return False if `value` is neither a name nor a whole number of an enum."""
    return not isinstance(value, bool) and not (isinstance(value, float) and not value.is_integer())


def _is_object(field: Any) -> bool:
    """Return True if the values of `field` are messages, except types with a special form in JSON."""
    return field.message_type is not None and field.message_type.full_name not in _JSON_TYPES


def _require_known_names(value: Mapping[str, Any], kind: type[Proto]) -> None:
    """Raise InvalidParamsError if a top-level enum field has an unknown value."""
    for field in kind.DESCRIPTOR.fields:
        text = value.get(field.json_name)
        if field.enum_type is not None and isinstance(text, str):
            _enum(field, text)


def is_padded_base64(text: str) -> bool:
    """Return True if `text` is base64 as A2A 0.3 defines it: standard, with padding."""
    return len(text) % 4 == 0 and _PADDED_BASE64.fullmatch(text) is not None


def is_base64(text: str) -> bool:
    """Return True if `text` is base64 as ProtoJSON defines it: standard or URL-safe, with or without padding."""
    if _BASE64.fullmatch(text) is None:
        return False
    return len(text) % 4 == 0 if text.endswith("=") else len(text) % 4 != 1
